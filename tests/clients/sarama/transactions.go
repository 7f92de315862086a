// What a broker owes sarama as a transactional producer, which speaks the first protocol, and as a group that consumes,
// transforms and produces in transactions.
package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/IBM/sarama"
)

const parts = 3

func checkTransactions() {
	check("commit and abort", commitAndAbort)
	check("an open transaction is invisible", openTransaction)
	check("a transaction runs out of time", outOfTime)
	check("a second instance fences the first", fence)
	check("copy with rebalances in between, classic", copyWithRebalances)
}

func commitAndAbort() {
	topic := create(parts, nil)
	producer := transactional(name(), time.Minute)
	defer producer.Close()
	for i := range 4 {
		must(producer.BeginTxn())
		for partition := range int32(parts) {
			must(producer.SendMessages([]*sarama.ProducerMessage{message(topic, partition, fmt.Sprint(i, "-", partition))}))
		}
		if i%2 == 0 {
			must(producer.CommitTxn())
		} else {
			must(producer.AbortTxn())
		}
	}
	equal([]string{"0-0", "0-1", "0-2", "2-0", "2-1", "2-2"}, contents(topic, parts, sarama.ReadCommitted))
	equal(4*parts, len(contents(topic, parts, sarama.ReadUncommitted)))
}

func openTransaction() {
	topic := create(1, nil)
	producer := transactional(name(), time.Minute)
	defer producer.Close()
	send(topic, 1)
	must(producer.BeginTxn())
	must(producer.SendMessages([]*sarama.ProducerMessage{message(topic, 0, "soon")}))
	send(topic, 1)
	equal(3, len(consume(topic, 0, 3)))
	config := settings()
	config.Consumer.IsolationLevel = sarama.ReadCommitted
	consumer, err := sarama.NewConsumer(brokers, config)
	must(err)
	defer consumer.Close()
	reader, err := consumer.ConsumePartition(topic, 0, 0)
	must(err)
	defer reader.Close()
	equal(1, len(receive(reader, 1)))
	select {
	case early := <-reader.Messages():
		panic(fmt.Sprint("a record of an open transaction or behind it: ", early.Offset))
	default:
	}
	must(producer.CommitTxn())
	equal(int64(2), receive(reader, 2)[1].Offset)
}

func outOfTime() {
	topic, id := create(1, nil), name()
	producer := transactional(id, time.Second)
	defer producer.Close()
	must(producer.BeginTxn())
	must(producer.SendMessages([]*sarama.ProducerMessage{message(topic, 0, "late")}))
	// A reader gets past it only when the coordinator has aborted it.
	equal(0, len(contents(topic, 1, sarama.ReadCommitted)))
	isFenced(producer.CommitTxn())
	next := transactional(id, time.Minute)
	defer next.Close()
	must(next.BeginTxn())
	must(next.SendMessages([]*sarama.ProducerMessage{message(topic, 0, "next")}))
	must(next.CommitTxn())
	equal([]string{"next"}, contents(topic, 1, sarama.ReadCommitted))
}

func fence() {
	topic, id := create(1, nil), name()
	first := transactional(id, time.Minute)
	defer first.Close()
	must(first.BeginTxn())
	must(first.SendMessages([]*sarama.ProducerMessage{message(topic, 0, "zombie")}))
	second := transactional(id, time.Minute)
	defer second.Close()
	for _, value := range []string{"heir", "again"} {
		must(second.BeginTxn())
		must(second.SendMessages([]*sarama.ProducerMessage{message(topic, 0, value)}))
		must(second.CommitTxn())
	}
	isFenced(first.CommitTxn())
	equal([]string{"again", "heir"}, contents(topic, 1, sarama.ReadCommitted))
}

func isFenced(err error) {
	if !errors.Is(err, sarama.ErrInvalidProducerEpoch) && !errors.Is(err, sarama.ErrProducerFenced) {
		panic(fmt.Sprintf("not fenced: %v", err))
	}
}

// -- consume, transform, produce -------------------------------------------------------------------------------

// So many records are in the input that are not in the output yet, as long as members come and go.
const ahead = 200

// The second member joins and leaves while the first one copies, a third one takes over.
func copyWithRebalances() {
	input, output := create(parts, nil), create(parts, nil)
	var copied atomic.Int64
	feeder := feed(input, &copied)
	first := startCopier(input, output, &copied)
	await("copies of the first", func() bool { return first.copied.Load() >= 50 })
	second := startCopier(input, output, &copied)
	await("copies of the second", func() bool { return second.copied.Load() >= 20 })
	second.close()
	before := first.copied.Load()
	await("more copies of the first", func() bool { return first.copied.Load() >= before+50 })
	third := startCopier(input, output, &copied)
	await("copies of the third", func() bool { return third.copied.Load() >= 20 })
	first.close()
	feeder.close()
	await("copies of everything", func() bool { return copied.Load() >= int64(len(feeder.sent)) })
	third.close()
	slices.Sort(feeder.sent)
	equal(feeder.sent, contents(output, parts, sarama.ReadCommitted))
}

// Something in a goroutine of its own, until it is closed; what goes wrong there is told then.
type worker struct {
	copied  atomic.Int64
	sent    []string
	failure any
	stop    context.CancelFunc
	ended   chan struct{}
}

func start(run func(context.Context, *worker)) *worker {
	running, stop := context.WithCancel(context.Background())
	w := &worker{stop: stop, ended: make(chan struct{})}
	go func() {
		defer close(w.ended)
		defer func() { w.failure = recover() }()
		run(running, w)
	}()
	return w
}

func (w *worker) close() {
	w.stop()
	<-w.ended
	if w.failure != nil {
		panic(w.failure)
	}
}

func feed(input string, copied *atomic.Int64) *worker {
	return start(func(running context.Context, w *worker) {
		config := settings()
		config.Producer.Partitioner = sarama.NewManualPartitioner
		producer, err := sarama.NewSyncProducer(brokers, config)
		must(err)
		defer producer.Close()
		for running.Err() == nil {
			if int64(len(w.sent)) >= copied.Load()+ahead {
				time.Sleep(time.Millisecond)
				continue
			}
			value := fmt.Sprint("r", len(w.sent))
			must(producer.SendMessages([]*sarama.ProducerMessage{message(input, int32(len(w.sent)%parts), value)}))
			w.sent = append(w.sent, strings.ToUpper(value))
		}
	})
}

// A member of the group of the input topic. It has a transactional producer for each partition that it gets.
type copier struct {
	worker        *worker
	total         *atomic.Int64
	input, output string
}

func startCopier(input, output string, total *atomic.Int64) *worker {
	return start(func(running context.Context, w *worker) {
		config := settings()
		config.Consumer.IsolationLevel = sarama.ReadCommitted // asks for stable offsets as well
		config.Consumer.Offsets.Initial = sarama.OffsetOldest
		config.Consumer.Offsets.AutoCommit.Enable = false
		config.Consumer.Group.Heartbeat.Interval = 300 * time.Millisecond
		group, err := sarama.NewConsumerGroup(brokers, input, config)
		must(err)
		defer group.Close()
		go func() {
			for range group.Errors() { // a claim that fails ends its session, and the next one reads again
			}
		}()
		for running.Err() == nil {
			must(group.Consume(running, []string{input}, &copier{w, total, input, output}))
		}
	})
}

func (*copier) Setup(sarama.ConsumerGroupSession) error   { return nil }
func (*copier) Cleanup(sarama.ConsumerGroupSession) error { return nil }

func (c *copier) ConsumeClaim(session sarama.ConsumerGroupSession, claim sarama.ConsumerGroupClaim) error {
	producer := transactional(fmt.Sprint(c.input, "-", session.MemberID(), "-", claim.Partition()), time.Minute)
	defer producer.Close()
	group := &sarama.ConsumerGroupMetadata{
		GroupID: c.input, GenerationID: session.GenerationID(), MemberID: session.MemberID(),
	}
	for {
		select {
		case <-session.Context().Done():
			return nil
		case first, open := <-claim.Messages():
			if !open {
				return nil
			}
			records := []*sarama.ConsumerMessage{first}
			for len(records) < 10 && len(claim.Messages()) > 0 {
				records = append(records, <-claim.Messages())
			}
			if err := c.copy(producer, group, records); err != nil {
				return errors.Join(err, producer.AbortTxn())
			}
			c.worker.copied.Add(int64(len(records)))
			c.total.Add(int64(len(records)))
		}
	}
}

func (c *copier) copy(
	producer sarama.SyncProducer, group *sarama.ConsumerGroupMetadata, records []*sarama.ConsumerMessage,
) error {
	if err := producer.BeginTxn(); err != nil {
		return err
	}
	var copies []*sarama.ProducerMessage
	for _, each := range records {
		copies = append(copies, message(c.output, each.Partition, strings.ToUpper(string(each.Value))))
	}
	if err := producer.SendMessages(copies); err != nil {
		return err
	}
	if err := producer.AddMessageToTxnWithGroupMetadata(records[len(records)-1], group, nil); err != nil {
		return err
	}
	return producer.CommitTxn()
}

// -- means -----------------------------------------------------------------------------------------------------

func transactional(id string, timeout time.Duration) sarama.SyncProducer {
	config := settings()
	config.Producer.Idempotent, config.Producer.RequiredAcks, config.Net.MaxOpenRequests = true, sarama.WaitForAll, 1
	config.Producer.Partitioner = sarama.NewManualPartitioner
	config.Producer.Transaction.ID, config.Producer.Transaction.Timeout = id, timeout
	producer, err := sarama.NewSyncProducer(brokers, config)
	must(err)
	return producer
}

func message(topic string, partition int32, value string) *sarama.ProducerMessage {
	return &sarama.ProducerMessage{Topic: topic, Partition: partition, Value: sarama.StringEncoder(value)}
}

// What a reader finds in the whole topic, sorted. It reads up to records that are written now.
func contents(topic string, partitions int32, level sarama.IsolationLevel) []string {
	end := "end-" + name()
	config := settings()
	config.Producer.Partitioner = sarama.NewManualPartitioner
	config.Consumer.IsolationLevel = level
	consumer, err := sarama.NewConsumer(brokers, config)
	must(err)
	defer consumer.Close()
	var found []string
	for i := range partitions {
		produce(config, message(topic, i, end))
		reader, err := consumer.ConsumePartition(topic, i, sarama.OffsetOldest)
		must(err)
		for value := ""; value != end; {
			value = string(receive(reader, 1)[0].Value)
			if !strings.HasPrefix(value, "end-") {
				found = append(found, value)
			}
		}
		must(reader.Close())
	}
	slices.Sort(found)
	return found
}
