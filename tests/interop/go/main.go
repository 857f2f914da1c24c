// A second, independent RocketMQ client: sends messages one by one and consumes them with a push consumer.
//
//	goclient <name server> <topic> <group> <count>
//
// prints one JSON object: what the answers to the sends said, and what the consumer got.
//
//	goclient kinds <name server> <suffix>
//
// runs the message kinds of kinds.go and prints one JSON object with what each consumer got.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"sync"
	"time"

	rocketmq "github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
	"github.com/apache/rocketmq-client-go/v2/rlog"
)

const waitMax = 60 * time.Second

// A message that is sent again because its answer came late on a crowded machine would come twice.
const sendTimeout = 30 * time.Second

type sent struct {
	Status      int    `json:"status"`
	QueueID     int    `json:"queueId"`
	QueueOffset int64  `json:"queueOffset"`
	UniqueID    string `json:"uniqueId"`
	OffsetID    string `json:"offsetId"`
}

type received struct {
	Body        string `json:"body"`
	Keys        string `json:"keys"`
	Tags        string `json:"tags"`
	Property    string `json:"property"`
	QueueID     int    `json:"queueId"`
	QueueOffset int64  `json:"queueOffset"`
	UniqueID    string `json:"uniqueId"`
	OffsetID    string `json:"offsetId"`
}

type report struct {
	Sent     []sent     `json:"sent"`
	Received []received `json:"received"`
}

func main() {
	if os.Args[1] == "kinds" {
		rlog.SetLogLevel("error")
		if err := json.NewEncoder(os.Stdout).Encode(runKinds(os.Args[2], os.Args[3])); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	if err := run(os.Args[1], os.Args[2], os.Args[3], os.Args[4]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(nameserver, topic, group, countText string) error {
	rlog.SetLogLevel("error")
	count, err := strconv.Atoi(countText)
	if err != nil {
		return err
	}
	out := report{}
	if out.Sent, err = send(nameserver, topic, count); err != nil {
		return err
	}
	if out.Received, err = consume(nameserver, topic, group, count); err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(out)
}

func send(nameserver, topic string, count int) ([]sent, error) {
	client, err := rocketmq.NewProducer(
		producer.WithNameServer([]string{nameserver}),
		producer.WithGroupName("go-producers"),
		producer.WithInstanceName("go-producer"),
		producer.WithRetry(2),
		producer.WithSendMsgTimeout(sendTimeout),
	)
	if err != nil {
		return nil, err
	}
	if err := client.Start(); err != nil {
		return nil, err
	}
	defer client.Shutdown()
	results := make([]sent, 0, count)
	for n := 0; n < count; n++ {
		message := primitive.NewMessage(topic, []byte(fmt.Sprintf("body %d", n)))
		message.WithTag("Go").WithKeys([]string{fmt.Sprintf("key%d", n)}).WithProperty("number", strconv.Itoa(n))
		answer, err := client.SendSync(context.Background(), message)
		if err != nil {
			return nil, fmt.Errorf("send %d: %w", n, err)
		}
		results = append(results, sent{
			Status: int(answer.Status), QueueID: answer.MessageQueue.QueueId, QueueOffset: answer.QueueOffset,
			UniqueID: answer.MsgID, OffsetID: answer.OffsetMsgID,
		})
	}
	return results, nil
}

func consume(nameserver, topic, group string, count int) ([]received, error) {
	client, err := rocketmq.NewPushConsumer(
		consumer.WithNameServer([]string{nameserver}),
		consumer.WithGroupName(group),
		consumer.WithInstance("go-consumer"),
		consumer.WithConsumeFromWhere(consumer.ConsumeFromFirstOffset),
	)
	if err != nil {
		return nil, err
	}
	var lock sync.Mutex
	results := make([]received, 0, count)
	complete := make(chan struct{})
	listen := func(_ context.Context, messages ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
		lock.Lock()
		defer lock.Unlock()
		for _, message := range messages {
			results = append(results, received{
				Body: string(message.Body), Keys: message.GetKeys(), Tags: message.GetTags(),
				Property: message.GetProperty("number"), QueueID: message.Queue.QueueId, QueueOffset: message.QueueOffset,
				UniqueID: message.MsgId, OffsetID: message.OffsetMsgId,
			})
			if len(results) == count {
				close(complete)
			}
		}
		return consumer.ConsumeSuccess, nil
	}
	selector := consumer.MessageSelector{Type: consumer.TAG, Expression: "Go"}
	if err := client.Subscribe(topic, selector, listen); err != nil {
		return nil, err
	}
	if err := client.Start(); err != nil {
		return nil, err
	}
	defer client.Shutdown()
	select {
	case <-complete:
	case <-time.After(waitMax):
	}
	lock.Lock()
	defer lock.Unlock()
	return append([]received(nil), results...), nil
}
