// Publishes messages and acks them under exactly-once delivery. Prints what happened as its last line.
package main

import (
	"context"
	"fmt"
	"log"
	"os"
	"sync"
	"time"

	"cloud.google.com/go/pubsub/v2"
	"cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"
)

const messages = 100

func main() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	project := os.Args[1]
	topic := fmt.Sprintf("projects/%s/topics/topic", project)
	subscription := fmt.Sprintf("projects/%s/subscriptions/subscription", project)
	client, err := pubsub.NewClient(ctx, project)
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	if _, err := client.TopicAdminClient.CreateTopic(ctx, &pubsubpb.Topic{Name: topic}); err != nil {
		log.Fatal(err)
	}
	if _, err := client.SubscriptionAdminClient.CreateSubscription(ctx, &pubsubpb.Subscription{
		Name:                      subscription,
		Topic:                     topic,
		EnableExactlyOnceDelivery: true,
	}); err != nil {
		log.Fatal(err)
	}

	published := publish(ctx, client, topic)
	received := map[string]bool{}
	succeeded, failed := 0, 0
	var mutex sync.Mutex
	receiving, stop := context.WithCancel(ctx)
	err = client.Subscriber(subscription).Receive(receiving, func(ctx context.Context, m *pubsub.Message) {
		status, err := m.AckWithResult().Get(ctx)
		mutex.Lock()
		defer mutex.Unlock()
		received[m.ID] = true
		if err == nil && status == pubsub.AcknowledgeStatusSuccess {
			succeeded++
		} else {
			failed++
			log.Printf("ack of %s: %v %v", m.ID, status, err)
		}
		if succeeded+failed == messages {
			stop()
		}
	})
	if err != nil {
		log.Fatal(err)
	}
	same := len(received) == len(published)
	for _, id := range published {
		same = same && received[id]
	}
	fmt.Printf("{\"published\": %d, \"same\": %t, \"succeeded\": %d, \"failed\": %d}\n",
		len(published), same, succeeded, failed)
}

func publish(ctx context.Context, client *pubsub.Client, topic string) []string {
	publisher := client.Publisher(topic)
	defer publisher.Stop()
	var sent []*pubsub.PublishResult
	for i := 0; i < messages; i++ {
		data := []byte(fmt.Sprintf("message %d", i))
		sent = append(sent, publisher.Publish(ctx, &pubsub.Message{Data: data}))
	}
	var ids []string
	for _, result := range sent {
		id, err := result.Get(ctx)
		if err != nil {
			log.Fatal(err)
		}
		ids = append(ids, id)
	}
	return ids
}
