package main

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"time"

	rocketmq "github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
)

// A message that arrives too often or by mistake has this long to show.
const surplusWait = 1500 * time.Millisecond

type delivery struct {
	Body        string `json:"body"`
	Key         string `json:"key"`
	QueueID     int    `json:"queueId"`
	QueueOffset int64  `json:"queueOffset"`
	RetryCount  int32  `json:"retryCount"`
	BornAt      int64  `json:"bornAt"`
	ReceivedAt  int64  `json:"receivedAt"`
}

type kindReport struct {
	Deliveries []delivery `json:"deliveries"`
	Checked    []string   `json:"checked"`
	Error      string     `json:"error"`
}

type kind func(nameserver, topic, group string) (kindReport, error)

// runKinds runs all kinds side by side; the topic of each is its name and a suffix, its group likewise.
func runKinds(nameserver, suffix string) map[string]kindReport {
	kinds := map[string]kind{
		"ordered": ordered, "delayed": delayed, "transaction": transaction, "dead": dead, "tags": byTags, "sql": bySQL,
	}
	var lock sync.Mutex
	var all sync.WaitGroup
	reports := map[string]kindReport{}
	for name, run := range kinds {
		all.Add(1)
		go func(name string, run kind) {
			defer all.Done()
			report, err := run(nameserver, "go-"+name+suffix, "go-group-"+name+suffix)
			if err != nil {
				report.Error = err.Error()
			}
			lock.Lock()
			defer lock.Unlock()
			reports[name] = report
		}(name, run)
	}
	all.Wait()
	return reports
}

// ordered sends by a hash of the sharding key and consumes one queue at a time, in order.
func ordered(nameserver, topic, group string) (kindReport, error) {
	messages := make([]*primitive.Message, 0)
	for n := 0; n < 30; n++ {
		key := fmt.Sprintf("user%d", n%3)
		messages = append(messages, plain(topic, n).WithShardingKey(key).WithKeys([]string{key}))
	}
	if err := sendAll(nameserver, topic, messages, producer.WithQueueSelector(producer.NewHashQueueSelector())); err != nil {
		return kindReport{}, err
	}
	return consumeKind(nameserver, topic, group, everything(), 30, consumer.ConsumeSuccess,
		consumer.WithConsumerOrder(true), consumer.WithRebalanceLockInterval(time.Second))
}

// delayed sends messages of levels 2, 1 and none, in that order.
func delayed(nameserver, topic, group string) (kindReport, error) {
	messages := []*primitive.Message{
		plain(topic, 0).WithDelayTimeLevel(2), plain(topic, 1).WithDelayTimeLevel(1), plain(topic, 2),
	}
	if err := sendAll(nameserver, topic, messages); err != nil {
		return kindReport{}, err
	}
	return consumeKind(nameserver, topic, group, everything(), 3, consumer.ConsumeSuccess)
}

// decisions leaves odd messages open; of those asked about, number 1 is committed and number 3 dropped.
type decisions struct {
	lock    sync.Mutex
	checked []string
}

func (d *decisions) ExecuteLocalTransaction(message *primitive.Message) primitive.LocalTransactionState {
	switch string(message.Body) {
	case "body 0":
		return primitive.CommitMessageState
	case "body 2":
		return primitive.RollbackMessageState
	default:
		return primitive.UnknowState
	}
}

func (d *decisions) CheckLocalTransaction(message *primitive.MessageExt) primitive.LocalTransactionState {
	d.lock.Lock()
	defer d.lock.Unlock()
	d.checked = append(d.checked, string(message.Body))
	if string(message.Body) == "body 1" {
		return primitive.CommitMessageState
	}
	return primitive.RollbackMessageState
}

// transaction commits message 0, rolls 2 back, and decides on 1 and 3 when asked.
func transaction(nameserver, topic, group string) (kindReport, error) {
	listener := &decisions{}
	client, err := rocketmq.NewTransactionProducer(listener,
		producer.WithNameServer([]string{nameserver}), producer.WithGroupName(group), producer.WithInstanceName("p"+topic))
	if err != nil {
		return kindReport{}, err
	}
	if err := client.Start(); err != nil {
		return kindReport{}, err
	}
	defer client.Shutdown()
	for n := 0; n < 4; n++ {
		if _, err := client.SendMessageInTransaction(context.Background(), plain(topic, n)); err != nil {
			return kindReport{}, fmt.Errorf("send %d: %w", n, err)
		}
	}
	report, err := consumeKind(nameserver, topic, group, everything(), 2, consumer.ConsumeSuccess)
	listener.lock.Lock()
	defer listener.lock.Unlock()
	report.Checked = append([]string(nil), listener.checked...)
	return report, err
}

// dead fails on a message until the broker gives it up.
func dead(nameserver, topic, group string) (kindReport, error) {
	if err := sendAll(nameserver, topic, []*primitive.Message{plain(topic, 0)}); err != nil {
		return kindReport{}, err
	}
	// The first life of the group makes its retry topic, whose route the second one finds at once.
	first, err := consumeKind(nameserver, topic, group, everything(), 1, consumer.ConsumeRetryLater, consumer.WithMaxReconsumeTimes(2))
	if err != nil {
		return first, err
	}
	second, err := consumeKind(nameserver, topic, group, everything(), 2, consumer.ConsumeRetryLater, consumer.WithMaxReconsumeTimes(2))
	second.Deliveries = append(first.Deliveries, second.Deliveries...)
	return second, err
}

func byTags(nameserver, topic, group string) (kindReport, error) {
	if err := sendAll(nameserver, topic, lettered(topic)); err != nil {
		return kindReport{}, err
	}
	selector := consumer.MessageSelector{Type: consumer.TAG, Expression: "a || c"}
	return consumeKind(nameserver, topic, group, selector, 4, consumer.ConsumeSuccess)
}

func bySQL(nameserver, topic, group string) (kindReport, error) {
	if err := sendAll(nameserver, topic, lettered(topic)); err != nil {
		return kindReport{}, err
	}
	selector := consumer.MessageSelector{Type: consumer.SQL92, Expression: "number BETWEEN 1 AND 4 AND TAGS <> 'b'"}
	return consumeKind(nameserver, topic, group, selector, 2, consumer.ConsumeSuccess)
}

func everything() consumer.MessageSelector { return consumer.MessageSelector{} }

func plain(topic string, n int) *primitive.Message {
	message := primitive.NewMessage(topic, []byte(fmt.Sprintf("body %d", n)))
	message.WithProperty("number", strconv.Itoa(n))
	return message
}

func lettered(topic string) []*primitive.Message {
	messages := make([]*primitive.Message, 0)
	for n := 0; n < 6; n++ {
		messages = append(messages, plain(topic, n).WithTag([]string{"a", "b", "c"}[n%3]))
	}
	return messages
}

func sendAll(nameserver, topic string, messages []*primitive.Message, options ...producer.Option) error {
	options = append(options, producer.WithNameServer([]string{nameserver}), producer.WithGroupName("go-producers"),
		producer.WithInstanceName("p"+topic), producer.WithRetry(2), producer.WithSendMsgTimeout(sendTimeout))
	client, err := rocketmq.NewProducer(options...)
	if err != nil {
		return err
	}
	if err := client.Start(); err != nil {
		return err
	}
	defer client.Shutdown()
	for n, message := range messages {
		if _, err := client.SendSync(context.Background(), message); err != nil {
			return fmt.Errorf("send %d: %w", n, err)
		}
	}
	return nil
}

func consumeKind(
	nameserver, topic, group string, selector consumer.MessageSelector, count int, outcome consumer.ConsumeResult,
	options ...consumer.Option,
) (kindReport, error) {
	options = append(options, consumer.WithNameServer([]string{nameserver}), consumer.WithGroupName(group),
		consumer.WithInstance(fmt.Sprintf("c%s%d", topic, time.Now().UnixNano())),
		consumer.WithConsumeFromWhere(consumer.ConsumeFromFirstOffset))
	client, err := rocketmq.NewPushConsumer(options...)
	if err != nil {
		return kindReport{}, err
	}
	var lock sync.Mutex
	deliveries := make([]delivery, 0)
	complete := make(chan struct{})
	listen := func(ctx context.Context, messages ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
		lock.Lock()
		defer lock.Unlock()
		if outcome == consumer.ConsumeRetryLater {
			if concurrently, ok := primitive.GetConcurrentlyCtx(ctx); ok {
				concurrently.DelayLevelWhenNextConsume = 1
			}
		}
		for _, message := range messages {
			deliveries = append(deliveries, delivery{
				Body: string(message.Body), Key: message.GetKeys(), QueueID: message.Queue.QueueId,
				QueueOffset: message.QueueOffset, RetryCount: message.ReconsumeTimes, BornAt: message.BornTimestamp,
				ReceivedAt: time.Now().UnixMilli(),
			})
			if len(deliveries) == count {
				close(complete)
			}
		}
		return outcome, nil
	}
	if err := client.Subscribe(topic, selector, listen); err != nil {
		return kindReport{}, err
	}
	if err := client.Start(); err != nil {
		return kindReport{}, err
	}
	defer client.Shutdown()
	select {
	case <-complete:
		time.Sleep(surplusWait)
	case <-time.After(waitMax):
	}
	lock.Lock()
	defer lock.Unlock()
	return kindReport{Deliveries: append([]delivery(nil), deliveries...)}, nil
}
