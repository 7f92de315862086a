// What a broker owes franz-go as a transactional producer, which speaks the second protocol (KIP-890), and as a group
// that consumes, transforms and produces in transactions.
package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

const parts = 3

func checkTransactions() {
	check("commit and abort", commitAndAbort)
	check("an open transaction is invisible", openTransaction)
	check("a transaction runs out of time", outOfTime)
	check("a second instance fences the first", fence)
	for _, protocol := range []string{"classic", "cooperative", "consumer"} {
		check("copy with rebalances in between, "+protocol, func() { copyWithRebalances(protocol) })
	}
}

func commitAndAbort() {
	topic := create(parts, nil)
	producer := transactional(name(), time.Minute)
	defer producer.Close()
	for i, outcome := range []kgo.TransactionEndTry{kgo.TryCommit, kgo.TryAbort, kgo.TryCommit, kgo.TryAbort} {
		must(producer.BeginTransaction())
		must(producer.ProduceSync(ctx(), spread(topic, fmt.Sprint(i))...).FirstErr())
		must(producer.EndTransaction(ctx(), outcome))
	}
	equal([]string{"0-0", "0-1", "0-2", "2-0", "2-1", "2-2"}, contents(topic, parts, kgo.ReadCommitted()))
	equal(4*parts, len(contents(topic, parts, kgo.ReadUncommitted())))
}

func openTransaction() {
	topic := create(1, nil)
	producer := transactional(name(), time.Minute)
	defer producer.Close()
	send(topic, 1)
	must(producer.BeginTransaction())
	must(producer.ProduceSync(ctx(), &kgo.Record{Topic: topic, Value: []byte("soon")}).FirstErr())
	send(topic, 1)
	equal(3, len(consume(topic, 3, kgo.NewOffset().AtStart())))
	reader := assigned(topic, kgo.NewOffset().AtStart(), kgo.FetchIsolationLevel(kgo.ReadCommitted()))
	defer reader.Close()
	equal(1, len(poll(reader, 1)))
	must(producer.EndTransaction(ctx(), kgo.TryCommit))
	equal(int64(2), poll(reader, 2)[1].Offset)
}

func outOfTime() {
	topic, id := create(1, nil), name()
	producer := transactional(id, time.Second)
	defer producer.Close()
	must(producer.BeginTransaction())
	must(producer.ProduceSync(ctx(), &kgo.Record{Topic: topic, Value: []byte("late")}).FirstErr())
	await("the abort by the coordinator", func() bool {
		found, err := admin.DescribeTransactions(ctx(), id)
		must(err)
		return found[id].State == "CompleteAbort"
	})
	refused(producer.EndTransaction(ctx(), kgo.TryCommit), kerr.InvalidTxnState, kerr.InvalidProducerEpoch)
	next := transactional(id, time.Minute)
	defer next.Close()
	must(next.BeginTransaction())
	must(next.ProduceSync(ctx(), &kgo.Record{Topic: topic, Value: []byte("next")}).FirstErr())
	must(next.EndTransaction(ctx(), kgo.TryCommit))
	equal([]string{"next"}, contents(topic, 1, kgo.ReadCommitted()))
}

func fence() {
	topic, id := create(1, nil), name()
	first := transactional(id, time.Minute)
	defer first.Close()
	must(first.BeginTransaction())
	must(first.ProduceSync(ctx(), &kgo.Record{Topic: topic, Value: []byte("zombie")}).FirstErr())
	second := transactional(id, time.Minute)
	defer second.Close()
	for _, value := range []string{"heir", "again"} {
		must(second.BeginTransaction())
		must(second.ProduceSync(ctx(), &kgo.Record{Topic: topic, Value: []byte(value)}).FirstErr())
		must(second.EndTransaction(ctx(), kgo.TryCommit))
	}
	refused(first.EndTransaction(ctx(), kgo.TryCommit), kerr.InvalidProducerEpoch, kerr.ProducerFenced)
	equal([]string{"again", "heir"}, contents(topic, 1, kgo.ReadCommitted()))
}

func refused(err error, expected ...error) {
	if !slices.ContainsFunc(expected, func(one error) bool { return errors.Is(err, one) }) {
		panic(fmt.Sprintf("expected one of %v, found %v", expected, err))
	}
}

// -- consume, transform, produce -------------------------------------------------------------------------------

// So many records are in the input that are not in the output yet, as long as members come and go.
const ahead = 200

// The second member joins and leaves while the first one copies, a third one takes over.
func copyWithRebalances(protocol string) {
	input, output := create(parts, nil), create(parts, nil)
	var copied atomic.Int64
	feeder := feed(input, &copied)
	first := startCopier(protocol, input, output, &copied)
	await("copies of the first", func() bool { return first.copied.Load() >= 50 })
	second := startCopier(protocol, input, output, &copied)
	await("copies of the second", func() bool { return second.copied.Load() >= 20 })
	second.close()
	before := first.copied.Load()
	await("more copies of the first", func() bool { return first.copied.Load() >= before+50 })
	third := startCopier(protocol, input, output, &copied)
	await("copies of the third", func() bool { return third.copied.Load() >= 20 })
	first.close()
	feeder.close()
	await("copies of everything", func() bool { return copied.Load() >= int64(len(feeder.sent)) })
	third.close()
	slices.Sort(feeder.sent)
	equal(feeder.sent, contents(output, parts, kgo.ReadCommitted()))
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
		producer := connect(kgo.RecordPartitioner(kgo.ManualPartitioner()))
		defer producer.Close()
		for running.Err() == nil {
			if int64(len(w.sent)) >= copied.Load()+ahead {
				time.Sleep(time.Millisecond)
				continue
			}
			value := fmt.Sprint("r", len(w.sent))
			record := &kgo.Record{Topic: input, Partition: int32(len(w.sent) % parts), Value: []byte(value)}
			must(producer.ProduceSync(ctx(), record).FirstErr())
			w.sent = append(w.sent, strings.ToUpper(value))
		}
	})
}

// A member of the group of the input topic that copies with a transactional producer of its own.
func startCopier(protocol, input, output string, total *atomic.Int64) *worker {
	id := name()
	return start(func(running context.Context, w *worker) {
		session, err := kgo.NewGroupTransactSession(groupOptions(protocol, input,
			kgo.SeedBrokers(brokers...), kgo.TransactionalID(id), kgo.FetchIsolationLevel(kgo.ReadCommitted()),
			kgo.RequireStableFetchOffsets(), kgo.RecordPartitioner(kgo.ManualPartitioner()))...)
		must(err)
		defer session.Close()
		for running.Err() == nil {
			fetches := session.PollRecords(running, 10)
			if fetches.NumRecords() == 0 {
				continue
			}
			must(session.Begin())
			produced := kgo.AbortingFirstErrPromise(session.Client())
			fetches.EachRecord(func(r *kgo.Record) {
				copy := &kgo.Record{Topic: output, Partition: r.Partition, Value: []byte(strings.ToUpper(string(r.Value)))}
				session.Produce(ctx(), copy, produced.Promise())
			})
			committed, err := session.End(ctx(), kgo.TransactionEndTry(produced.Err() == nil))
			must(err)
			if committed {
				w.copied.Add(int64(fetches.NumRecords()))
				total.Add(int64(fetches.NumRecords()))
			}
		}
	})
}

// -- means -----------------------------------------------------------------------------------------------------

func transactional(id string, timeout time.Duration) *kgo.Client {
	return connect(kgo.TransactionalID(id), kgo.TransactionTimeout(timeout), kgo.RecordPartitioner(kgo.ManualPartitioner()))
}

// A record for each partition.
func spread(topic, text string) []*kgo.Record {
	var records []*kgo.Record
	for i := range int32(parts) {
		records = append(records, &kgo.Record{Topic: topic, Partition: i, Value: fmt.Append(nil, text, "-", i)})
	}
	return records
}

// What a reader finds in the whole topic, sorted. It reads up to records that are written now.
func contents(topic string, partitions int32, level kgo.IsolationLevel) []string {
	end := "end-" + name()
	producer := connect(kgo.RecordPartitioner(kgo.ManualPartitioner()))
	defer producer.Close()
	from := map[int32]kgo.Offset{}
	for i := range partitions {
		must(producer.ProduceSync(ctx(), &kgo.Record{Topic: topic, Partition: i, Value: []byte(end)}).FirstErr())
		from[i] = kgo.NewOffset().AtStart()
	}
	reader := connect(kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{topic: from}),
		kgo.FetchMaxWait(100*time.Millisecond), kgo.FetchIsolationLevel(level))
	defer reader.Close()
	var found []string
	for ends, limit := int32(0), ctx(); ends < partitions; {
		must(limit.Err())
		reader.PollFetches(limit).EachRecord(func(record *kgo.Record) {
			if value := string(record.Value); value == end {
				ends++
			} else if !strings.HasPrefix(value, "end-") {
				found = append(found, value)
			}
		})
	}
	slices.Sort(found)
	return found
}
