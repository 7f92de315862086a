// What a broker owes sarama, checked with the client's public interface alone.
//
// Run as `conformance BOOTSTRAP PREFIX`. Prints one line of JSON for each check:
// {"check": name, "ok": true} or {"check": name, "ok": false, "detail": why}. What is here consumes
// by assignment; groups are in groups.go, transactions in transactions.go.
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/IBM/sarama"
)

const deadline = 30 * time.Second

var (
	brokers []string
	prefix  string
	topics  int
	admin   sarama.ClusterAdmin
	client  sarama.Client
)

func main() {
	brokers, prefix = strings.Split(os.Args[1], ","), os.Args[2]
	var err error
	client, err = sarama.NewClient(brokers, settings())
	must(err)
	admin, err = sarama.NewClusterAdminFromClient(client)
	must(err)
	defer admin.Close()

	check("create and describe a topic", createAndDescribe)
	check("refuse bad topics", refuseBadTopics)
	check("add partitions", addPartitions)
	check("describe and alter configs", configs)
	check("describe the cluster", cluster)
	check("describe log dirs", logDirs)
	check("describe acls", acls)
	check("delete a topic", deleteTopic)
	codecs := []sarama.CompressionCodec{
		sarama.CompressionNone, sarama.CompressionGZIP, sarama.CompressionSnappy, sarama.CompressionLZ4,
		sarama.CompressionZSTD,
	}
	acks := map[string]sarama.RequiredAcks{"0": sarama.NoResponse, "1": sarama.WaitForLocal, "all": sarama.WaitForAll}
	for _, codec := range codecs {
		for level, required := range acks {
			check(fmt.Sprintf("produce %s acks %s", codec, level), func() { produceAndConsume(codec, required, level) })
		}
	}
	check("produce idempotently", idempotent)
	check("every size of record", sizes)
	check("a record too large", tooLarge)
	check("headers, nulls and timestamps", shapes)
	check("consume from every kind of offset", positions)
	check("delete records", deleteRecords)
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
	topic := create(3, map[string]string{"retention.ms": "123456"})
	description := describe(topic)
	equal(3, len(description.Partitions))
	equal(len(brokers), len(description.Partitions[0].Replicas))
	equal(len(brokers), len(description.Partitions[0].Isr))
	equal(description.Partitions[0].Replicas[0], description.Partitions[0].Leader)
	listed, err := admin.ListTopics()
	must(err)
	equal(int32(3), listed[topic].NumPartitions)
	equal("123456", *listed[topic].ConfigEntries["retention.ms"])
	unmade := name()
	must(admin.CreateTopic(unmade, &sarama.TopicDetail{NumPartitions: 1, ReplicationFactor: 1}, true))
	listed, err = admin.ListTopics()
	must(err)
	_, made := listed[unmade]
	equal(false, made)
	assigned := name()
	must(admin.CreateTopic(assigned, &sarama.TopicDetail{
		NumPartitions: -1, ReplicationFactor: -1, ReplicaAssignment: map[int32][]int32{0: {1}, 1: {1}},
	}, false))
	await("two partitions", func() bool { return len(describe(assigned).Partitions) == 2 })
}

func refuseBadTopics() {
	topic := create(1, nil)
	refused := func(code sarama.KError, partitions int32, replicas int16, configs map[string]*string, topic string) {
		detail := &sarama.TopicDetail{NumPartitions: partitions, ReplicationFactor: replicas, ConfigEntries: configs}
		fails(code, admin.CreateTopic(topic, detail, false))
	}
	soon := "soon"
	refused(sarama.ErrTopicAlreadyExists, 1, 1, nil, topic)
	refused(sarama.ErrInvalidTopic, 1, 1, nil, "no/good")
	refused(sarama.ErrInvalidPartitions, 0, 1, nil, name())
	refused(sarama.ErrInvalidReplicationFactor, 1, 5, nil, name())
	refused(sarama.ErrInvalidConfig, 1, 1, map[string]*string{"retention.ms": &soon}, name())
}

func addPartitions() {
	topic := create(1, nil)
	must(admin.CreatePartitions(topic, 4, nil, false))
	await("four partitions", func() bool { return len(describe(topic).Partitions) == 4 })
	fails(sarama.ErrInvalidPartitions, admin.CreatePartitions(topic, 2, nil, false))
}

func configs() {
	topic := create(1, map[string]string{"retention.ms": "123456"})
	equal("123456", config(topic, "retention.ms"))
	limit, policy, few := "2000", "compact", "few"
	must(admin.IncrementalAlterConfig(sarama.TopicResource, topic, map[string]sarama.IncrementalAlterConfigsEntry{
		"max.message.bytes": {Operation: sarama.IncrementalAlterConfigsOperationSet, Value: &limit},
		"retention.ms":      {Operation: sarama.IncrementalAlterConfigsOperationDelete},
		"cleanup.policy":    {Operation: sarama.IncrementalAlterConfigsOperationAppend, Value: &policy},
	}, false))
	await("the new configs", func() bool {
		return config(topic, "max.message.bytes") == "2000" && config(topic, "retention.ms") == "604800000" &&
			config(topic, "cleanup.policy") == "delete,compact"
	})
	fails(sarama.ErrInvalidConfig, admin.IncrementalAlterConfig(sarama.TopicResource, topic,
		map[string]sarama.IncrementalAlterConfigsEntry{"segment.bytes": {Value: &few}}, false))
	entries, err := admin.DescribeConfig(sarama.ConfigResource{
		Type: sarama.BrokerResource, Name: "1", ConfigNames: []string{"message.max.bytes"},
	})
	must(err)
	equal("1048588", entries[0].Value)
}

func cluster() {
	described, controller, err := admin.DescribeCluster()
	must(err)
	equal(len(brokers), len(described))
	equal(true, slices.ContainsFunc(described, func(b *sarama.Broker) bool { return b.ID() == controller }))
}

func logDirs() {
	topic := create(1, nil)
	send(topic, 3)
	// The first broker may be a follower, which gets the records a moment later.
	await("records in a folder", func() bool {
		dirs, err := admin.DescribeLogDirs([]int32{1})
		must(err)
		return slices.ContainsFunc(dirs[1], func(dir sarama.DescribeLogDirsResponseDirMetadata) bool {
			return slices.ContainsFunc(dir.Topics, func(found sarama.DescribeLogDirsResponseTopic) bool {
				return found.Topic == topic && found.Partitions[0].Size > 0
			})
		})
	})
}

func acls() {
	_, err := admin.ListAcls(sarama.AclFilter{
		ResourceType: sarama.AclResourceAny, ResourcePatternTypeFilter: sarama.AclPatternAny,
		Operation: sarama.AclOperationAny, PermissionType: sarama.AclPermissionAny,
	})
	fails(sarama.ErrSecurityDisabled, err)
}

func deleteTopic() {
	topic := create(1, nil)
	send(topic, 1)
	must(admin.DeleteTopic(topic))
	await("the topic to be gone", func() bool {
		described, err := admin.DescribeTopics([]string{topic})
		must(err)
		return described[0].Err == sarama.ErrUnknownTopicOrPartition
	})
	fails(sarama.ErrUnknownTopicOrPartition, admin.DeleteTopic(topic))
}

func produceAndConsume(codec sarama.CompressionCodec, acks sarama.RequiredAcks, level string) {
	topic := create(1, nil)
	config := settings()
	config.Producer.Compression, config.Producer.RequiredAcks = codec, acks
	var messages []*sarama.ProducerMessage
	for i := range 50 {
		messages = append(messages, &sarama.ProducerMessage{
			Topic: topic, Key: sarama.StringEncoder(fmt.Sprintf("key-%d", i)),
			Value: sarama.StringEncoder(strings.Repeat("value-", 20)),
		})
	}
	produce(config, messages...)
	for i, message := range consume(topic, 0, 50) {
		equal(int64(i), message.Offset)
		equal(fmt.Sprintf("key-%d", i), string(message.Key))
		equal(strings.Repeat("value-", 20), string(message.Value))
		if level != "0" {
			equal(int64(i), messages[i].Offset)
		}
	}
}

func idempotent() {
	topic := create(1, nil)
	config := settings()
	config.Producer.Idempotent, config.Producer.RequiredAcks, config.Net.MaxOpenRequests = true, sarama.WaitForAll, 1
	config.Producer.Flush.MaxMessages = 20
	var messages []*sarama.ProducerMessage
	for i := range 1000 {
		messages = append(messages, &sarama.ProducerMessage{Topic: topic, Value: sarama.StringEncoder(fmt.Sprint(i))})
	}
	produce(config, messages...)
	for i, message := range consume(topic, sarama.OffsetOldest, 1000) {
		equal(fmt.Sprint(i), string(message.Value))
	}
	equal(int64(1000), offset(topic, sarama.OffsetNewest))
}

func sizes() {
	topic := create(1, nil)
	wanted := []int{0, 1, 2, 100, 1_000, 10_000, 100_000, 1_000_000}
	for _, size := range wanted {
		produce(settings(), &sarama.ProducerMessage{Topic: topic, Value: sarama.ByteEncoder(make([]byte, size))})
	}
	for i, message := range consume(topic, 0, len(wanted)) {
		equal(wanted[i], len(message.Value))
	}
}

func tooLarge() {
	topic := create(1, nil)
	config := settings()
	config.Producer.MaxMessageBytes = 5_000_000
	producer, err := sarama.NewSyncProducer(brokers, config)
	must(err)
	defer producer.Close()
	large := &sarama.ProducerMessage{Topic: topic, Value: sarama.ByteEncoder(make([]byte, 2_000_000))}
	_, _, err = producer.SendMessage(large)
	fails(sarama.ErrMessageSizeTooLarge, err)
	equal(int64(0), offset(topic, sarama.OffsetNewest))
}

func shapes() {
	topic := create(1, nil)
	moment := time.UnixMilli(time.Now().UnixMilli() - 3_600_000)
	headers := []sarama.RecordHeader{
		{Key: []byte("one"), Value: []byte("1")}, {Key: []byte("one"), Value: []byte("2")},
		{Key: []byte("empty"), Value: []byte{}}, {Key: []byte("none")},
	}
	for _, message := range []*sarama.ProducerMessage{
		{Key: sarama.StringEncoder("k"), Value: sarama.StringEncoder("v"), Headers: headers},
		{Value: sarama.StringEncoder("no key")},
		{Key: sarama.StringEncoder("no value")},
		{},
		{Key: sarama.ByteEncoder([]byte{}), Value: sarama.ByteEncoder([]byte{})},
	} {
		message.Topic, message.Timestamp = topic, moment
		produce(settings(), message)
	}
	messages := consume(topic, 0, 5)
	equal(4, len(messages[0].Headers))
	equal("2", string(messages[0].Headers[1].Value))
	equal(0, len(messages[0].Headers[2].Value))
	equal(true, messages[0].Headers[3].Value == nil)
	equal(moment.UnixMilli(), messages[0].Timestamp.UnixMilli())
	equal(true, messages[1].Key == nil)
	equal(true, messages[2].Value == nil)
	equal(true, messages[3].Key == nil && messages[3].Value == nil)
	equal(true, messages[4].Key != nil && messages[4].Value != nil)
}

func positions() {
	topic := create(1, nil)
	moment := time.Now().UnixMilli() - 3_600_000
	config := settings()
	config.Producer.Flush.MaxMessages = 7
	var messages []*sarama.ProducerMessage
	for i := range 100 {
		messages = append(messages, &sarama.ProducerMessage{
			Topic: topic, Timestamp: time.UnixMilli(moment + int64(i)*10), Value: sarama.StringEncoder("v"),
		})
	}
	produce(config, messages...)
	equal(int64(0), consume(topic, sarama.OffsetOldest, 1)[0].Offset)
	equal(int64(42), consume(topic, 42, 1)[0].Offset)
	equal(int64(51), offset(topic, moment+505))
	equal(int64(-1), offset(topic, moment+100_000))
	equal(int64(0), offset(topic, sarama.OffsetOldest))
	equal(int64(100), offset(topic, sarama.OffsetNewest))
	consumer, err := sarama.NewConsumer(brokers, settings())
	must(err)
	defer consumer.Close()
	_, err = consumer.ConsumePartition(topic, 0, 1000)
	fails(sarama.ErrOffsetOutOfRange, err)

	newest, err := consumer.ConsumePartition(topic, 0, sarama.OffsetNewest)
	must(err)
	defer newest.Close()
	send(topic, 1)
	equal(int64(100), receive(newest, 1)[0].Offset)
}

func deleteRecords() {
	topic := create(1, nil)
	send(topic, 10)
	must(admin.DeleteRecords(topic, map[int32]int64{0: 4}))
	equal(int64(4), offset(topic, sarama.OffsetOldest))
	equal(int64(4), consume(topic, sarama.OffsetOldest, 6)[0].Offset)
	// sarama wraps the code of a partition in an error of its own.
	err := admin.DeleteRecords(topic, map[int32]int64{0: 99})
	equal(true, err != nil && strings.Contains(err.Error(), sarama.ErrOffsetOutOfRange.Error()))
}

func waitForRecord() {
	topic := create(1, nil)
	config := settings()
	config.Consumer.MaxWaitTime = 4 * time.Second
	consumer, err := sarama.NewConsumer(brokers, config)
	must(err)
	defer consumer.Close()
	partition, err := consumer.ConsumePartition(topic, 0, sarama.OffsetOldest)
	must(err)
	defer partition.AsyncClose()
	select {
	case <-partition.Messages():
		panic("a record before there is one")
	case <-time.After(300 * time.Millisecond):
	}
	began := time.Now()
	send(topic, 1)
	equal(1, len(receive(partition, 1)))
	equal(true, time.Since(began) < 3*time.Second)
}

func brokerTimestamps() {
	topic := create(1, map[string]string{"message.timestamp.type": "LogAppendTime", "compression.type": "gzip"})
	began := time.Now().Add(-time.Second)
	produce(settings(), &sarama.ProducerMessage{
		Topic: topic, Timestamp: time.UnixMilli(1000), Value: sarama.StringEncoder("v"),
	})
	equal(true, consume(topic, 0, 1)[0].Timestamp.After(began))
}

// -- the client ------------------------------------------------------------------------------------------------

func settings() *sarama.Config {
	config := sarama.NewConfig()
	config.ClientID = "conformance"
	config.Version = sarama.MaxVersion
	config.Producer.Return.Successes = true
	config.Producer.MaxMessageBytes = 1_048_500
	config.Consumer.MaxWaitTime = 100 * time.Millisecond
	config.Consumer.Return.Errors = true
	return config
}

func name() string {
	topics++
	return fmt.Sprintf("%s-%d", prefix, topics)
}

func create(partitions int32, configs map[string]string) string {
	topic := name()
	entries := map[string]*string{}
	for key, value := range configs {
		entries[key] = &value
	}
	detail := &sarama.TopicDetail{NumPartitions: partitions, ReplicationFactor: -1, ConfigEntries: entries}
	must(admin.CreateTopic(topic, detail, false))
	await("the topic", func() bool { return len(describe(topic).Partitions) == int(partitions) })
	return topic
}

func describe(topic string) *sarama.TopicMetadata {
	described, err := admin.DescribeTopics([]string{topic})
	must(err)
	return described[0]
}

// config asks any broker, which may hear of a new topic a moment after the one that created it.
func config(topic, key string) string {
	var entries []sarama.ConfigEntry
	await("the config of the topic", func() bool {
		var err error
		entries, err = admin.DescribeConfig(sarama.ConfigResource{
			Type: sarama.TopicResource, Name: topic, ConfigNames: []string{key},
		})
		if !errors.Is(err, sarama.ErrUnknownTopicOrPartition) {
			must(err)
		}
		return err == nil
	})
	return entries[0].Value
}

func send(topic string, count int) {
	for i := range count {
		produce(settings(), &sarama.ProducerMessage{Topic: topic, Value: sarama.StringEncoder(fmt.Sprint(i))})
	}
}

func produce(config *sarama.Config, messages ...*sarama.ProducerMessage) {
	producer, err := sarama.NewSyncProducer(brokers, config)
	must(err)
	defer producer.Close()
	must(producer.SendMessages(messages))
}

func consume(topic string, from int64, count int) []*sarama.ConsumerMessage {
	consumer, err := sarama.NewConsumer(brokers, settings())
	must(err)
	defer consumer.Close()
	partition, err := consumer.ConsumePartition(topic, 0, from)
	must(err)
	defer partition.Close()
	return receive(partition, count)
}

func receive(partition sarama.PartitionConsumer, count int) []*sarama.ConsumerMessage {
	var messages []*sarama.ConsumerMessage
	limit := time.After(deadline)
	for len(messages) < count {
		select {
		case message := <-partition.Messages():
			messages = append(messages, message)
		case err := <-partition.Errors():
			panic(err)
		case <-limit:
			panic(fmt.Sprintf("only %d of %d records", len(messages), count))
		}
	}
	return messages
}

func offset(topic string, moment int64) int64 {
	found, err := client.GetOffset(topic, 0, moment)
	must(err)
	return found
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

func fails(expected sarama.KError, found error) {
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
