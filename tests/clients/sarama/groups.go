// What a broker owes sarama as a member of groups (of the classic protocol), and as an admin of them.
package main

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/IBM/sarama"
)

func checkGroups() {
	check("share a topic, classic", share)
	check("keep commits over a restart, classic", commits)
	check("read partitions that are added, classic", grow)
	check("list and describe groups, classic", describeGroups)
	check("list, alter and delete offsets, classic", groupOffsets)
	check("remove members and delete a group, classic", deleteGroup)
}

func share() {
	topic := create(4, nil)
	produceTo(topic, 4, 10)
	first := join(topic, groupSettings())
	defer first.close()
	await("all partitions and records", func() bool { return first.owns() == 4 && distinct(first) == 40 })
	second := join(topic, groupSettings())
	defer second.close()
	await("half of the partitions each", func() bool { return first.owns() == 2 && second.owns() == 2 })
	produceTo(topic, 4, 10)
	await("new records", func() bool { return distinct(first, second) == 80 })
	second.close()
	await("all partitions again", func() bool { return first.owns() == 4 })
	produceTo(topic, 4, 10)
	await("the last records", func() bool { return distinct(first, second) == 120 })
}

func commits() {
	topic := create(1, nil)
	produceTo(topic, 1, 10)
	// It marks what it hands out up to the fourth record, and commits what is marked when it closes.
	reader := joinUpTo(topic, groupSettings(), 4)
	await("all records", func() bool { return distinct(reader) == 10 })
	reader.close()
	equal(map[int32]int64{0: 4}, committed(topic, 1))
	again := join(topic, groupSettings())
	await("the rest", func() bool { return distinct(again) == 6 })
	again.close()
	equal(map[int32]int64{0: 10}, committed(topic, 1))
}

func grow() {
	topic := create(1, nil)
	config := groupSettings()
	config.Metadata.RefreshFrequency = 300 * time.Millisecond
	m := join(topic, config)
	defer m.close()
	await("the partition", func() bool { return m.owns() == 1 })
	must(admin.CreatePartitions(topic, 3, nil, false))
	await("three partitions", func() bool { return m.owns() == 3 })
	produceTo(topic, 3, 5)
	await("all records", func() bool { return distinct(m) == 15 })
}

func describeGroups() {
	topic := create(4, nil)
	named := groupSettings()
	named.Consumer.Group.InstanceId = "two"
	first, second := join(topic, groupSettings()), join(topic, named)
	defer first.close()
	defer second.close()
	await("half of the partitions each", func() bool { return first.owns() == 2 && second.owns() == 2 })
	await("a stable group", func() bool { return described(topic).State == "Stable" })
	group := described(topic)
	equal("range", group.Protocol)
	equal("consumer", group.ProtocolType)
	equal(2, len(group.Members))
	instances := 0
	for _, each := range group.Members {
		assignment, err := each.GetMemberAssignment()
		must(err)
		equal(2, len(assignment.Topics[topic]))
		equal("conformance", each.ClientId)
		if each.GroupInstanceId != nil && *each.GroupInstanceId == "two" {
			instances++
		}
	}
	equal(1, instances)
	listed, err := admin.ListConsumerGroups()
	must(err)
	equal("consumer", listed[topic])
}

func groupOffsets() {
	topic := create(2, nil)
	produceTo(topic, 2, 10)
	change := map[string]map[int32]sarama.OffsetAndMetadata{topic: {0: {Offset: 3, LeaderEpoch: -1}}}
	m := join(topic, groupSettings())
	await("all records", func() bool { return distinct(m) == 20 })
	altered, err := admin.AlterConsumerGroupOffsets(topic, change, nil)
	if err == nil {
		err = altered.Errors[topic][0]
	}
	fails(sarama.ErrUnknownMemberId, err)
	fails(sarama.ErrGroupSubscribedToTopic, admin.DeleteConsumerGroupOffset(topic, topic, 0))
	m.close()
	equal(map[int32]int64{0: 10, 1: 10}, committed(topic, 2))
	_, err = admin.AlterConsumerGroupOffsets(topic, change, nil)
	must(err)
	equal(map[int32]int64{0: 3, 1: 10}, committed(topic, 2))
	must(admin.DeleteConsumerGroupOffset(topic, topic, 1))
	equal(map[int32]int64{0: 3, 1: -1}, committed(topic, 2))
	again := join(topic, groupSettings())
	defer again.close()
	await("what is after the offsets", func() bool { return distinct(again) == 17 })
}

func deleteGroup() {
	topic := create(1, nil)
	config := groupSettings()
	config.Consumer.Group.InstanceId = "one"
	m := join(topic, config)
	await("the partition", func() bool { return m.owns() == 1 })
	fails(sarama.ErrNonEmptyGroup, admin.DeleteConsumerGroup(topic))
	m.close()
	_, err := admin.RemoveMemberFromConsumerGroup(topic, []string{"one"})
	must(err)
	must(admin.DeleteConsumerGroup(topic))
	listed, err := admin.ListConsumerGroups()
	must(err)
	_, there := listed[topic]
	equal(false, there)
	fails(sarama.ErrGroupIDNotFound, admin.DeleteConsumerGroup(topic))
}

// -- members ---------------------------------------------------------------------------------------------------

// A member reads on its own until it is closed, and commits what it has marked.
type member struct {
	lock     sync.Mutex
	group    sarama.ConsumerGroup
	cancel   context.CancelFunc
	upTo     int64
	owned    int
	received map[string]bool
	ended    chan struct{}
	once     sync.Once
}

func groupSettings() *sarama.Config {
	config := settings()
	config.Consumer.Offsets.Initial = sarama.OffsetOldest
	config.Consumer.Group.Heartbeat.Interval = 300 * time.Millisecond
	config.Consumer.Return.Errors = false
	return config
}

func join(topic string, config *sarama.Config) *member {
	return joinUpTo(topic, config, 1<<60)
}

func joinUpTo(topic string, config *sarama.Config, upTo int64) *member {
	group, err := sarama.NewConsumerGroup(brokers, topic, config)
	must(err)
	running, cancel := context.WithCancel(context.Background())
	m := &member{group: group, cancel: cancel, upTo: upTo, received: map[string]bool{}, ended: make(chan struct{})}
	go func() {
		defer close(m.ended)
		for running.Err() == nil {
			// Ends with every rebalance. A failed session is tried again, as programs do.
			if err := group.Consume(running, []string{topic}, m); err != nil {
				time.Sleep(50 * time.Millisecond)
			}
		}
	}()
	return m
}

func (m *member) Setup(session sarama.ConsumerGroupSession) error {
	m.lock.Lock()
	defer m.lock.Unlock()
	m.owned = 0
	for _, partitions := range session.Claims() {
		m.owned += len(partitions)
	}
	return nil
}

func (m *member) Cleanup(sarama.ConsumerGroupSession) error {
	m.lock.Lock()
	defer m.lock.Unlock()
	m.owned = 0
	return nil
}

func (m *member) ConsumeClaim(session sarama.ConsumerGroupSession, claim sarama.ConsumerGroupClaim) error {
	for message := range claim.Messages() {
		m.lock.Lock()
		m.received[fmt.Sprint(message.Partition, "@", message.Offset)] = true
		m.lock.Unlock()
		if message.Offset < m.upTo {
			session.MarkMessage(message, "")
		}
	}
	return nil
}

func (m *member) owns() int {
	m.lock.Lock()
	defer m.lock.Unlock()
	return m.owned
}

func (m *member) close() {
	m.once.Do(func() {
		m.cancel()
		<-m.ended
		must(m.group.Close())
	})
}

func distinct(members ...*member) int {
	all := map[string]bool{}
	for _, m := range members {
		m.lock.Lock()
		for record := range m.received {
			all[record] = true
		}
		m.lock.Unlock()
	}
	return len(all)
}

func produceTo(topic string, partitions int32, each int) {
	config := settings()
	config.Producer.Partitioner = sarama.NewManualPartitioner
	var messages []*sarama.ProducerMessage
	for partition := range partitions {
		for i := range each {
			messages = append(messages, &sarama.ProducerMessage{
				Topic: topic, Partition: partition, Value: sarama.StringEncoder(fmt.Sprint(i)),
			})
		}
	}
	produce(config, messages...)
}

func committed(group string, partitions int32) map[int32]int64 {
	var wanted []int32
	for partition := range partitions {
		wanted = append(wanted, partition)
	}
	fetched, err := admin.ListConsumerGroupOffsetsBatch(map[string]map[string][]int32{group: {group: wanted}})
	must(err)
	found := map[int32]int64{}
	for partition, block := range fetched[group].Blocks[group] {
		found[partition] = block.Offset
	}
	return found
}

func described(group string) *sarama.GroupDescription {
	found, err := admin.DescribeConsumerGroups([]string{group})
	must(err)
	if found[0].Err != sarama.ErrNoError {
		panic(found[0].Err)
	}
	return found[0]
}
