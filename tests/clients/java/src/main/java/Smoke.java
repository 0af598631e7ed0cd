import com.google.api.core.ApiFuture;
import com.google.api.core.ApiFutures;
import com.google.api.gax.core.NoCredentialsProvider;
import com.google.api.gax.grpc.GrpcTransportChannel;
import com.google.api.gax.rpc.FixedTransportChannelProvider;
import com.google.api.gax.rpc.TransportChannelProvider;
import com.google.cloud.pubsub.v1.AckResponse;
import com.google.cloud.pubsub.v1.MessageReceiverWithAckResponse;
import com.google.cloud.pubsub.v1.Publisher;
import com.google.cloud.pubsub.v1.Subscriber;
import com.google.cloud.pubsub.v1.SubscriptionAdminClient;
import com.google.cloud.pubsub.v1.SubscriptionAdminSettings;
import com.google.cloud.pubsub.v1.TopicAdminClient;
import com.google.cloud.pubsub.v1.TopicAdminSettings;
import com.google.protobuf.ByteString;
import com.google.pubsub.v1.PubsubMessage;
import com.google.pubsub.v1.Subscription;
import io.grpc.ManagedChannel;
import io.grpc.ManagedChannelBuilder;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;

/** Publishes messages and acks them under exactly-once delivery. Prints what happened as its last line. */
public final class Smoke {
  private static final int MESSAGES = 100;

  public static void main(String[] arguments) throws Exception {
    String topic = "projects/" + arguments[0] + "/topics/topic";
    String subscription = "projects/" + arguments[0] + "/subscriptions/subscription";
    String host = System.getenv("PUBSUB_EMULATOR_HOST");
    ManagedChannel channel = ManagedChannelBuilder.forTarget(host).usePlaintext().build();
    TransportChannelProvider provider =
        FixedTransportChannelProvider.create(GrpcTransportChannel.create(channel));
    createResources(topic, subscription, provider);

    Set<String> received = ConcurrentHashMap.newKeySet();
    AtomicInteger succeeded = new AtomicInteger();
    AtomicInteger failed = new AtomicInteger();
    CountDownLatch done = new CountDownLatch(MESSAGES);
    MessageReceiverWithAckResponse receiver =
        (message, consumer) -> {
          received.add(message.getMessageId());
          try {
            boolean ok = consumer.ack().get(30, TimeUnit.SECONDS) == AckResponse.SUCCESSFUL;
            (ok ? succeeded : failed).incrementAndGet();
          } catch (Exception error) {
            failed.incrementAndGet();
            System.err.println("ack of " + message.getMessageId() + ": " + error);
          }
          done.countDown();
        };
    Subscriber subscriber =
        Subscriber.newBuilder(subscription, receiver)
            .setChannelProvider(provider)
            .setCredentialsProvider(NoCredentialsProvider.create())
            .build();
    subscriber.startAsync().awaitRunning();

    List<String> published = publish(topic, provider);
    boolean inTime = done.await(60, TimeUnit.SECONDS);
    subscriber.stopAsync().awaitTerminated(30, TimeUnit.SECONDS);
    channel.shutdownNow();
    boolean same = inTime && received.equals(new HashSet<>(published));
    System.out.printf(
        "{\"published\": %d, \"same\": %b, \"succeeded\": %d, \"failed\": %d}%n",
        published.size(), same, succeeded.get(), failed.get());
    System.exit(0);
  }

  private static void createResources(
      String topic, String subscription, TransportChannelProvider provider) throws Exception {
    TopicAdminSettings topics =
        TopicAdminSettings.newBuilder()
            .setTransportChannelProvider(provider)
            .setCredentialsProvider(NoCredentialsProvider.create())
            .build();
    SubscriptionAdminSettings subscriptions =
        SubscriptionAdminSettings.newBuilder()
            .setTransportChannelProvider(provider)
            .setCredentialsProvider(NoCredentialsProvider.create())
            .build();
    TopicAdminClient.create(topics).createTopic(topic);
    SubscriptionAdminClient.create(subscriptions)
        .createSubscription(
            Subscription.newBuilder()
                .setName(subscription)
                .setTopic(topic)
                .setEnableExactlyOnceDelivery(true)
                .build());
  }

  private static List<String> publish(String topic, TransportChannelProvider provider)
      throws Exception {
    Publisher publisher =
        Publisher.newBuilder(topic)
            .setChannelProvider(provider)
            .setCredentialsProvider(NoCredentialsProvider.create())
            .build();
    List<ApiFuture<String>> sent = new ArrayList<>();
    for (int i = 0; i < MESSAGES; i++) {
      ByteString data = ByteString.copyFromUtf8("message " + i);
      sent.add(publisher.publish(PubsubMessage.newBuilder().setData(data).build()));
    }
    List<String> messageIds = ApiFutures.allAsList(sent).get(30, TimeUnit.SECONDS);
    publisher.shutdown();
    return messageIds;
  }
}
