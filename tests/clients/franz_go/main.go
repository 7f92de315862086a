// What a broker owes franz-go, checked with the client's public interface alone.
//
// Run as `conformance BOOTSTRAP PREFIX`. Prints one line of JSON for each check:
// {"check": name, "ok": true} or {"check": name, "ok": false, "detail": why}. What is here consumes
// by assignment; groups are in groups.go, transactions in transactions.go.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

const deadline = 30 * time.Second

var (
	brokers []string
	prefix  string
	topics  int
	admin   *kadm.Client
)

func main() {
	brokers, prefix = strings.Split(os.Args[1], ","), os.Args[2]
	client := connect()
	defer client.Close()
	admin = kadm.NewClient(client)

	check("create and describe a topic", createAndDescribe)
	check("refuse bad topics", refuseBadTopics)
	check("add partitions", addPartitions)
	check("describe and alter configs", configs)
	check("describe the cluster", cluster)
	check("describe log dirs", logDirs)
	check("describe acls", acls)
	check("delete a topic", deleteTopic)
	codecs := map[string]kgo.CompressionCodec{
		"none": kgo.NoCompression(), "gzip": kgo.GzipCompression(), "snappy": kgo.SnappyCompression(),
		"lz4": kgo.Lz4Compression(), "zstd": kgo.ZstdCompression(),
	}
	acks := map[string]kgo.Acks{"0": kgo.NoAck(), "1": kgo.LeaderAck(), "all": kgo.AllISRAcks()}
	for codec, compression := range codecs {
		for level, required := range acks {
			check("produce "+codec+" acks "+level, func() { produceAndConsume(compression, required, level) })
		}
	}
	check("produce idempotently", idempotent)
	check("every size of record", sizes)
	check("a record too large", tooLarge)
	check("headers, nulls and timestamps", shapes)
	check("consume from every kind of offset", positions)
	check("list offsets", listOffsets)
	check("delete records", deleteRecords)
	check("describe producers", describeProducers)
	check("wait for a record", waitForRecord)
	check("broker timestamps", brokerTimestamps)
	checkGroups()
	checkTransactions()
}

func check(name string, run func()) {
	result := map[string]any{"check": name, "ok": true}
	func() {
		defer func() {
			if failure := recover(); failure != nil {
				result["ok"], result["detail"] = false, fmt.Sprint(failure)
			}
		}()
		run()
	}()
	line, err := json.Marshal(result)
	must(err)
	fmt.Println(string(line))
}

// -- checks ----------------------------------------------------------------------------------------------------

func createAndDescribe() {
	value := "123456"
	topic := create(3, map[string]*string{"retention.ms": &value})
	detail := describe(topic)
	equal(3, len(detail.Partitions))
	equal(len(brokers), len(detail.Partitions[0].Replicas))
	equal(len(brokers), len(detail.Partitions[0].ISR))
	equal(detail.Partitions[0].Replicas[0], detail.Partitions[0].Leader)
	equal(false, detail.ID == kadm.TopicID{})
	checked, err := admin.ValidateCreateTopics(ctx(), 1, 1, nil, name())
	must(err)
	must(checked.Error())
}

func refuseBadTopics() {
	topic := create(1, nil)
	refused := func(code error, partitions int32, replicas int16, configs map[string]*string, topic string) {
		_, err := admin.CreateTopic(ctx(), partitions, replicas, configs, topic)
		fails(code, err)
	}
	soon := "soon"
	refused(kerr.TopicAlreadyExists, 1, 1, nil, topic)
	refused(kerr.InvalidTopicException, 1, 1, nil, "no/good")
	refused(kerr.InvalidPartitions, 0, 1, nil, name())
	refused(kerr.InvalidReplicationFactor, 1, 5, nil, name())
	refused(kerr.InvalidConfig, 1, 1, map[string]*string{"retention.ms": &soon}, name())
}

func addPartitions() {
	topic := create(1, nil)
	grown, err := admin.UpdatePartitions(ctx(), 4, topic)
	must(err)
	must(grown.Error())
	await("four partitions", func() bool { return len(describe(topic).Partitions) == 4 })
	shrunk, err := admin.UpdatePartitions(ctx(), 2, topic)
	must(err)
	fails(kerr.InvalidPartitions, shrunk.Error())
}

func configs() {
	value := "123456"
	topic := create(1, map[string]*string{"retention.ms": &value})
	equal("123456", config(topic, "retention.ms"))
	limit, policy := "2000", "compact"
	changed, err := admin.AlterTopicConfigs(ctx(), []kadm.AlterConfig{
		{Op: kadm.SetConfig, Name: "max.message.bytes", Value: &limit},
		{Op: kadm.DeleteConfig, Name: "retention.ms"},
		{Op: kadm.AppendConfig, Name: "cleanup.policy", Value: &policy},
	}, topic)
	must(err)
	must(changed[0].Err)
	await("the new configs", func() bool {
		return config(topic, "max.message.bytes") == "2000" && config(topic, "retention.ms") == "604800000" &&
			config(topic, "cleanup.policy") == "delete,compact"
	})
	few := "few"
	refused, err := admin.AlterTopicConfigs(ctx(), []kadm.AlterConfig{{Name: "segment.bytes", Value: &few}}, topic)
	must(err)
	fails(kerr.InvalidConfig, refused[0].Err)
	described, err := admin.DescribeBrokerConfigs(ctx(), 1)
	must(err)
	must(described[0].Err)
	equal(true, slices.ContainsFunc(described[0].Configs, func(c kadm.Config) bool {
		return c.Key == "message.max.bytes" && c.MaybeValue() == "1048588"
	}))
}

func cluster() {
	metadata, err := admin.BrokerMetadata(ctx())
	must(err)
	equal(len(brokers), len(metadata.Brokers))
	equal(true, slices.Contains(metadata.Brokers.NodeIDs(), metadata.Controller))
	equal(false, metadata.Cluster == "")
	versions, err := admin.ApiVersions(ctx())
	must(err)
	equal(len(brokers), len(versions))
}

func logDirs() {
	topic := create(1, nil)
	send(topic, 3)
	dirs, err := admin.DescribeAllLogDirs(ctx(), nil)
	must(err)
	found, ok := dirs[1].LookupPartition(topic, 0)
	equal(true, ok)
	equal(true, found.Size > 0)
}

func acls() {
	described, err := admin.DescribeACLs(ctx(), kadm.NewACLs().AnyResource().Allow().AllowHosts().
		Operations(kadm.OpAny).ResourcePatternType(kadm.ACLPatternAny))
	must(err)
	fails(kerr.SecurityDisabled, described[0].Err)
}

func deleteTopic() {
	topic := create(1, nil)
	send(topic, 1)
	_, err := admin.DeleteTopic(ctx(), topic)
	must(err)
	await("the topic to be gone", func() bool {
		listed, err := admin.ListTopics(ctx(), topic)
		must(err)
		return errors.Is(listed[topic].Err, kerr.UnknownTopicOrPartition)
	})
	_, err = admin.DeleteTopic(ctx(), topic)
	fails(kerr.UnknownTopicOrPartition, err)
}

func produceAndConsume(codec kgo.CompressionCodec, acks kgo.Acks, level string) {
	topic := create(1, nil)
	options := []kgo.Opt{kgo.ProducerBatchCompression(codec), kgo.RequiredAcks(acks)}
	if level != "all" {
		options = append(options, kgo.DisableIdempotentWrite())
	}
	producer := connect(options...)
	defer producer.Close()
	var records []*kgo.Record
	for i := range 50 {
		records = append(records, &kgo.Record{
			Topic: topic, Key: fmt.Appendf(nil, "key-%d", i), Value: []byte(strings.Repeat("value-", 20)),
		})
	}
	for i, result := range producer.ProduceSync(ctx(), records...) {
		must(result.Err)
		if level != "0" {
			equal(int64(i), result.Record.Offset)
		}
	}
	for i, record := range consume(topic, 50, kgo.NewOffset().At(0)) {
		equal(int64(i), record.Offset)
		equal(fmt.Sprintf("key-%d", i), string(record.Key))
		equal(strings.Repeat("value-", 20), string(record.Value))
	}
}

func idempotent() {
	topic := create(1, nil)
	producer := connect(kgo.ProducerBatchMaxBytes(1000))
	defer producer.Close()
	for i := range 1000 {
		producer.Produce(ctx(), &kgo.Record{Topic: topic, Value: fmt.Append(nil, i)}, func(_ *kgo.Record, err error) {
			must(err)
		})
	}
	must(producer.Flush(ctx()))
	for i, record := range consume(topic, 1000, kgo.NewOffset().AtStart()) {
		equal(fmt.Sprint(i), string(record.Value))
	}
	equal(int64(1000), end(topic))
}

func sizes() {
	topic := create(1, nil)
	producer := connect(kgo.ProducerBatchCompression(kgo.NoCompression()))
	defer producer.Close()
	wanted := []int{0, 1, 2, 100, 1_000, 10_000, 100_000, 990_000}
	for _, size := range wanted {
		must(producer.ProduceSync(ctx(), &kgo.Record{Topic: topic, Value: make([]byte, size)}).FirstErr())
	}
	for i, record := range consume(topic, len(wanted), kgo.NewOffset().At(0)) {
		equal(wanted[i], len(record.Value))
	}
}

func tooLarge() {
	topic := create(1, nil)
	producer := connect(kgo.ProducerBatchMaxBytes(5_000_000), kgo.ProducerBatchCompression(kgo.NoCompression()))
	defer producer.Close()
	err := producer.ProduceSync(ctx(), &kgo.Record{Topic: topic, Value: make([]byte, 2_000_000)}).FirstErr()
	fails(kerr.MessageTooLarge, err)
	equal(int64(0), end(topic))
}

func shapes() {
	topic := create(1, nil)
	moment := time.UnixMilli(time.Now().UnixMilli() - 3_600_000)
	producer := connect()
	defer producer.Close()
	headers := []kgo.RecordHeader{
		{Key: "one", Value: []byte("1")}, {Key: "one", Value: []byte("2")}, {Key: "empty", Value: []byte{}}, {Key: "none"},
	}
	for _, record := range []*kgo.Record{
		{Key: []byte("k"), Value: []byte("v"), Headers: headers},
		{Value: []byte("no key")},
		{Key: []byte("no value")},
		{},
		{Key: []byte{}, Value: []byte{}},
	} {
		record.Topic, record.Timestamp = topic, moment
		must(producer.ProduceSync(ctx(), record).FirstErr())
	}
	records := consume(topic, 5, kgo.NewOffset().At(0))
	equal(4, len(records[0].Headers))
	equal("2", string(records[0].Headers[1].Value))
	equal(true, records[0].Headers[2].Value != nil && len(records[0].Headers[2].Value) == 0)
	equal(true, records[0].Headers[3].Value == nil)
	equal(moment.UnixMilli(), records[0].Timestamp.UnixMilli())
	equal(true, records[1].Key == nil)
	equal(true, records[2].Value == nil)
	equal(true, records[3].Key == nil && records[3].Value == nil)
	equal(true, records[4].Key != nil && len(records[4].Key) == 0)
	equal(true, records[4].Value != nil && len(records[4].Value) == 0)
}

func positions() {
	topic := create(1, nil)
	moment := time.Now().UnixMilli() - 3_600_000
	producer := connect(kgo.ProducerBatchMaxBytes(600))
	defer producer.Close()
	for i := range 100 {
		record := &kgo.Record{
			Topic: topic, Timestamp: time.UnixMilli(moment + int64(i)*10), Value: bytes.Repeat([]byte("x"), 20),
		}
		producer.Produce(ctx(), record, nil)
	}
	must(producer.Flush(ctx()))
	equal(int64(0), consume(topic, 1, kgo.NewOffset().AtStart())[0].Offset)
	equal(int64(42), consume(topic, 1, kgo.NewOffset().At(42))[0].Offset)
	equal(int64(97), consume(topic, 3, kgo.NewOffset().AtEnd().Relative(-3))[0].Offset)
	equal(int64(51), consume(topic, 1, kgo.NewOffset().AfterMilli(moment+505))[0].Offset)
	equal(int64(0), consume(topic, 1, kgo.NewOffset().At(0), kgo.FetchIsolationLevel(kgo.ReadCommitted()))[0].Offset)

	late := connect(kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{topic: {0: kgo.NewOffset().At(1000)}}),
		kgo.ConsumeResetOffset(kgo.NoResetOffset()))
	defer late.Close()
	polled := late.PollFetches(ctx())
	var refusal error
	polled.EachError(func(_ string, _ int32, err error) { refusal = err })
	fails(kerr.OffsetOutOfRange, refusal)
}

func listOffsets() {
	topic := create(1, nil)
	moment := time.Now().UnixMilli() - 3_600_000
	producer := connect()
	defer producer.Close()
	for _, late := range []int64{10, 50, 20} {
		record := &kgo.Record{Topic: topic, Timestamp: time.UnixMilli(moment + late), Value: []byte("v")}
		must(producer.ProduceSync(ctx(), record).FirstErr())
	}
	started, err := admin.ListStartOffsets(ctx(), topic)
	must(err)
	equal(int64(0), started[topic][0].Offset)
	equal(int64(3), end(topic))
	after, err := admin.ListOffsetsAfterMilli(ctx(), moment+15, topic)
	must(err)
	equal(int64(1), after[topic][0].Offset)
	largest, err := admin.ListMaxTimestampOffsets(ctx(), topic)
	must(err)
	equal(int64(1), largest[topic][0].Offset)
	equal(moment+50, largest[topic][0].Timestamp)
}

func deleteRecords() {
	topic := create(1, nil)
	send(topic, 10)
	offsets := kadm.Offsets{}
	offsets.AddOffset(topic, 0, 4, -1)
	deleted, err := admin.DeleteRecords(ctx(), offsets)
	must(err)
	must(deleted.Error())
	equal(int64(4), deleted[topic][0].LowWatermark)
	equal(int64(4), consume(topic, 6, kgo.NewOffset().AtStart())[0].Offset)
	offsets = kadm.Offsets{}
	offsets.AddOffset(topic, 0, 99, -1)
	refused, err := admin.DeleteRecords(ctx(), offsets)
	must(err)
	fails(kerr.OffsetOutOfRange, refused.Error())
}

func describeProducers() {
	topic := create(1, nil)
	send(topic, 3)
	described, err := admin.DescribeProducers(ctx(), kadm.TopicsSet{topic: {0: {}}})
	must(err)
	producers := described[topic].Partitions[0].ActiveProducers.Sorted()
	equal(1, len(producers))
	equal(int32(2), producers[0].LastSequence)
}

func waitForRecord() {
	topic := create(1, nil)
	consumer := assigned(topic, kgo.NewOffset().AtStart(), kgo.FetchMaxWait(4*time.Second))
	defer consumer.Close()
	short, cancel := context.WithTimeout(context.Background(), 300*time.Millisecond)
	defer cancel()
	equal(0, consumer.PollFetches(short).NumRecords())
	began := time.Now()
	send(topic, 1)
	equal(1, len(poll(consumer, 1)))
	equal(true, time.Since(began) < 3*time.Second)
}

func brokerTimestamps() {
	kind, codec := "LogAppendTime", "gzip"
	topic := create(1, map[string]*string{"message.timestamp.type": &kind, "compression.type": &codec})
	began := time.Now().Add(-time.Second)
	producer := connect()
	defer producer.Close()
	record := &kgo.Record{Topic: topic, Timestamp: time.UnixMilli(1000), Value: []byte("v")}
	must(producer.ProduceSync(ctx(), record).FirstErr())
	stamped := consume(topic, 1, kgo.NewOffset().At(0))[0]
	equal(true, stamped.Timestamp.After(began))
	equal(int8(1), stamped.Attrs.TimestampType())
}

// -- the client ------------------------------------------------------------------------------------------------

func connect(options ...kgo.Opt) *kgo.Client {
	client, err := kgo.NewClient(append([]kgo.Opt{
		kgo.SeedBrokers(brokers...), kgo.ClientID("conformance"), kgo.RetryTimeout(deadline),
	}, options...)...)
	must(err)
	return client
}

func ctx() context.Context {
	limited, cancel := context.WithTimeout(context.Background(), deadline)
	_ = cancel // the deadline ends it
	return limited
}

func name() string {
	topics++
	return fmt.Sprintf("%s-%d", prefix, topics)
}

func create(partitions int32, configs map[string]*string) string {
	topic := name()
	_, err := admin.CreateTopic(ctx(), partitions, -1, configs, topic)
	must(err)
	await("the topic", func() bool { return len(describe(topic).Partitions) == int(partitions) })
	return topic
}

func describe(topic string) kadm.TopicDetail {
	listed, err := admin.ListTopics(ctx(), topic)
	must(err)
	return listed[topic]
}

func config(topic, key string) string {
	described, err := admin.DescribeTopicConfigs(ctx(), topic)
	must(err)
	must(described[0].Err)
	for _, c := range described[0].Configs {
		if c.Key == key {
			return c.MaybeValue()
		}
	}
	panic("no config " + key)
}

func send(topic string, count int) {
	producer := connect()
	defer producer.Close()
	for i := range count {
		must(producer.ProduceSync(ctx(), &kgo.Record{Topic: topic, Value: fmt.Append(nil, i)}).FirstErr())
	}
}

func assigned(topic string, from kgo.Offset, options ...kgo.Opt) *kgo.Client {
	return connect(append([]kgo.Opt{
		kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{topic: {0: from}}), kgo.FetchMaxWait(100 * time.Millisecond),
	}, options...)...)
}

func consume(topic string, count int, from kgo.Offset, options ...kgo.Opt) []*kgo.Record {
	consumer := assigned(topic, from, options...)
	defer consumer.Close()
	return poll(consumer, count)
}

func poll(consumer *kgo.Client, count int) []*kgo.Record {
	var records []*kgo.Record
	limit := ctx()
	for len(records) < count {
		fetches := consumer.PollFetches(limit)
		for _, failure := range fetches.Errors() {
			panic(fmt.Sprintf("only %d of %d records: %v", len(records), count, failure.Err))
		}
		records = append(records, fetches.Records()...)
	}
	return records
}

func end(topic string) int64 {
	ended, err := admin.ListEndOffsets(ctx(), topic)
	must(err)
	must(ended.Error())
	return ended[topic][0].Offset
}

// A cluster tells its brokers of a change a moment after it tells the client.
func await(what string, holds func() bool) {
	limit := time.Now().Add(deadline)
	for !holds() {
		if time.Now().After(limit) {
			panic("waited in vain for " + what)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

func fails(expected, found error) {
	if !errors.Is(found, expected) {
		panic(fmt.Sprintf("expected %v, found %v", expected, found))
	}
}

func equal[T any](expected, found T) {
	if fmt.Sprint(expected) != fmt.Sprint(found) {
		panic(fmt.Sprintf("expected %v, found %v", expected, found))
	}
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}
