// Publishes messages and acks them under exactly-once delivery. Prints what happened as its last line.

const {PubSub} = require('@google-cloud/pubsub');

const MESSAGES = 100;
const PROJECT = process.argv[2];

async function main() {
  const pubsub = new PubSub({projectId: PROJECT});
  const [topic] = await pubsub.createTopic('topic');
  const [subscription] = await topic.createSubscription('subscription', {
    enableExactlyOnceDelivery: true,
  });

  const received = new Set();
  let succeeded = 0;
  let failed = 0;
  const done = new Promise((resolve, reject) => {
    subscription.on('error', reject);
    subscription.on('message', async message => {
      received.add(message.id);
      try {
        await message.ackWithResponse();
        succeeded += 1;
      } catch (error) {
        failed += 1;
        console.error(`ack of ${message.id}: ${error}`);
      }
      if (succeeded + failed >= MESSAGES) {
        resolve();
      }
    });
  });

  const data = i => Buffer.from(`message ${i}`);
  const published = await Promise.all(
    Array.from({length: MESSAGES}, (_, i) => topic.publishMessage({data: data(i)}))
  );
  await done;
  await subscription.close();
  await pubsub.close();
  const same = published.every(id => received.has(id)) && received.size === MESSAGES;
  console.log(JSON.stringify({published: published.length, same, succeeded, failed}));
}

main().catch(error => {
  console.error(error);
  process.exit(1);
});
