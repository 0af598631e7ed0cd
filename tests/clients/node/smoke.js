// Publishes messages, half of them with ordering keys, and acks them under exactly-once delivery. Prints what
// happened as its last line.

const {PubSub} = require('@google-cloud/pubsub');

const MESSAGES = 100;
const KEYS = ['', 'a', '', 'b'];
const PROJECT = process.argv[2];

async function main() {
  const pubsub = new PubSub({projectId: PROJECT});
  const [topic] = await pubsub.createTopic('topic');
  topic.setPublishOptions({messageOrdering: true});
  const [subscription] = await topic.createSubscription('subscription', {
    enableExactlyOnceDelivery: true,
    enableMessageOrdering: true,
  });

  const received = new Set();
  const numbers = {a: [], b: []};
  let succeeded = 0;
  let failed = 0;
  const done = new Promise((resolve, reject) => {
    subscription.on('error', reject);
    subscription.on('message', async message => {
      received.add(message.id);
      numbers[message.orderingKey]?.push(Number(message.data));
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

  const keyOf = i => KEYS[i % KEYS.length];
  const indexes = Array.from({length: MESSAGES}, (_, i) => i);
  const published = await Promise.all(
    indexes.map(i => topic.publishMessage({data: Buffer.from(String(i)), orderingKey: keyOf(i)}))
  );
  await done;
  await subscription.close();
  await pubsub.close();
  const same = published.every(id => received.has(id)) && received.size === MESSAGES;
  const inOrder = Object.keys(numbers).every(
    key => numbers[key].join() === indexes.filter(i => keyOf(i) === key).join()
  );
  console.log(JSON.stringify({published: published.length, same, succeeded, failed, inOrder}));
}

main().catch(error => {
  console.error(error);
  process.exit(1);
});
