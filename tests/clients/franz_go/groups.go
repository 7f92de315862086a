// What a broker owes franz-go as a member of groups, and as an admin of them.
//
// Protocols: "classic" (eager), "cooperative" and "consumer" (KIP-848, the broker assigns).
package main

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

func checkGroups() {
	for _, protocol := range []string{"classic", "cooperative", "consumer"} {
		check("share a topic, "+protocol, func() { share(protocol) })
	}
	for _, protocol := range []string{"classic", "consumer"} {
		check("keep commits over a restart, "+protocol, func() { commits(protocol) })
		check("read partitions that are added, "+protocol, func() { grow(protocol) })
		check("list and describe groups, "+protocol, func() { describeGroups(protocol) })
		check("list, alter and delete offsets, "+protocol, func() { groupOffsets(protocol) })
		check("remove members and delete a group, "+protocol, func() { deleteGroup(protocol) })
	}
}

func share(protocol string) {
	topic := create(4, nil)
	produceTo(topic, 4, 10)
	first := join(protocol, topic)
	defer first.close()
	await("all partitions and records", func() bool { return first.owns() == 4 && distinct(first) == 40 })
	second := join(protocol, topic)
	defer second.close()
	await("half of the partitions each", func() bool { return first.owns() == 2 && second.owns() == 2 })
	produceTo(topic, 4, 10)
	await("new records", func() bool { return distinct(first, second) == 80 })
	second.close()
	await("all partitions again", func() bool { return first.owns() == 4 })
	produceTo(topic, 4, 10)
	await("the last records", func() bool { return distinct(first, second) == 120 })
}

func commits(protocol string) {
	topic := create(1, nil)
	produceTo(topic, 1, 10)
	reader := connect(groupOptions(protocol, topic, kgo.DisableAutoCommit())...)
	records := poll(reader, 10)
	must(reader.CommitRecords(ctx(), records[3]))
	reader.Close()
	reader = connect(groupOptions(protocol, topic, kgo.DisableAutoCommit())...)
	defer reader.Close()
	equal(int64(4), poll(reader, 6)[0].Offset)
	must(reader.CommitUncommittedOffsets(ctx()))
	equal(map[int32]int64{0: 10}, committed(topic))
}

func grow(protocol string) {
	topic := create(1, nil)
	member := join(protocol, topic, kgo.MetadataMaxAge(time.Second), kgo.MetadataMinAge(100*time.Millisecond))
	defer member.close()
	await("the partition", func() bool { return member.owns() == 1 })
	grown, err := admin.UpdatePartitions(ctx(), 3, topic)
	must(err)
	must(grown.Error())
	await("three partitions", func() bool { return member.owns() == 3 })
	produceTo(topic, 3, 5)
	await("all records", func() bool { return distinct(member) == 15 })
}

func describeGroups(protocol string) {
	topic := create(4, nil)
	first, second := join(protocol, topic), join(protocol, topic, kgo.InstanceID("two"))
	defer first.close()
	defer second.close()
	await("half of the partitions each", func() bool { return first.owns() == 2 && second.owns() == 2 })
	if protocol == "consumer" {
		await("a stable group", func() bool { return describedConsumers(topic).State == "Stable" })
		group := describedConsumers(topic)
		equal(2, len(group.Members))
		equal("uniform", group.AssignorName)
		equal(4, len(group.AssignedPartitions()[topic]))
		equal(true, group.Epoch > 0 && group.AssignmentEpoch == group.Epoch)
	} else {
		await("a stable group", func() bool { return described(topic).State == "Stable" })
		group := described(topic)
		equal(2, len(group.Members))
		equal("range", group.Protocol)
		equal(4, len(group.AssignedPartitions()[topic]))
		equal(true, slices.ContainsFunc(group.Members, func(member kadm.DescribedGroupMember) bool {
			return member.InstanceID != nil && *member.InstanceID == "two" && member.ClientID == "conformance"
		}))
	}
	listed, err := admin.ListGroupsByType(ctx(), []string{protocol}, "Stable")
	must(err)
	equal("Stable", listed[topic].State)
	listed, err = admin.ListGroups(ctx(), "Empty")
	must(err)
	equal(false, slices.Contains(listed.Groups(), topic))
	// A static member that closes is expected back; it is removed, so that the other need not wait for it.
	second.close()
	_, err = admin.LeaveGroup(ctx(), kadm.LeaveGroup(topic).InstanceIDs("two"))
	must(err)
	await("all partitions", func() bool { return first.owns() == 4 })
}

func groupOffsets(protocol string) {
	topic := create(2, nil)
	produceTo(topic, 2, 10)
	change := kadm.Offsets{}
	change.AddOffset(topic, 0, 3, -1)
	member := join(protocol, topic)
	await("all records", func() bool { return distinct(member) == 20 })
	fails(kerr.UnknownMemberID, admin.CommitAllOffsets(ctx(), topic, change))
	refused, err := admin.DeleteOffsets(ctx(), topic, change.TopicsSet())
	must(err)
	fails(kerr.GroupSubscribedToTopic, refused.Error())
	member.close()
	equal(map[int32]int64{0: 10, 1: 10}, committed(topic))
	lags, err := admin.Lag(ctx(), topic)
	must(err)
	equal(int64(0), lags[topic].Lag.Total())
	must(admin.CommitAllOffsets(ctx(), topic, change))
	equal(map[int32]int64{0: 3, 1: 10}, committed(topic))
	deleted, err := admin.DeleteOffsets(ctx(), topic, kadm.TopicsSet{topic: {1: {}}})
	must(err)
	must(deleted.Error())
	equal(map[int32]int64{0: 3}, committed(topic))
	again := join(protocol, topic)
	defer again.close()
	await("what is after the offsets", func() bool { return distinct(again) == 17 })
}

func deleteGroup(protocol string) {
	topic := create(1, nil)
	member := join(protocol, topic, kgo.InstanceID("one"))
	await("the partition", func() bool { return member.owns() == 1 })
	_, err := admin.DeleteGroup(ctx(), topic)
	fails(kerr.NonEmptyGroup, err)
	member.close()
	_, err = admin.LeaveGroup(ctx(), kadm.LeaveGroup(topic).InstanceIDs("one"))
	must(err)
	_, err = admin.DeleteGroup(ctx(), topic)
	must(err)
	listed, err := admin.ListGroups(ctx())
	must(err)
	equal(false, slices.Contains(listed.Groups(), topic))
	_, err = admin.DeleteGroup(ctx(), topic)
	fails(kerr.GroupIDNotFound, err)
}

// -- members ---------------------------------------------------------------------------------------------------

// A member polls on its own until it is closed.
type member struct {
	lock     sync.Mutex
	client   *kgo.Client
	owned    map[int32]bool
	received map[string]bool
	ended    chan struct{}
	once     sync.Once
}

func groupOptions(protocol, topic string, options ...kgo.Opt) []kgo.Opt {
	balancing := map[string][]kgo.Opt{
		"classic":     {kgo.Balancers(kgo.RangeBalancer())},
		"cooperative": {kgo.Balancers(kgo.CooperativeStickyBalancer())},
		"consumer":    {kgo.Balancers(kgo.StickyBalancer()), kgo.ServerSideBalancer()},
	}[protocol]
	return slices.Concat([]kgo.Opt{
		kgo.ConsumerGroup(topic), kgo.ConsumeTopics(topic), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.FetchMaxWait(100 * time.Millisecond), kgo.HeartbeatInterval(300 * time.Millisecond),
	}, balancing, options)
}

func join(protocol, topic string, options ...kgo.Opt) *member {
	m := &member{owned: map[int32]bool{}, received: map[string]bool{}, ended: make(chan struct{})}
	gone := func(_ context.Context, _ *kgo.Client, partitions map[string][]int32) {
		m.lock.Lock()
		defer m.lock.Unlock()
		for _, partition := range partitions[topic] {
			delete(m.owned, partition)
		}
	}
	revoked := func(ctx context.Context, client *kgo.Client, partitions map[string][]int32) {
		// With callbacks of one's own, committing what was read is one's own business too.
		must(client.CommitUncommittedOffsets(ctx))
		gone(ctx, client, partitions)
	}
	assigned := func(_ context.Context, _ *kgo.Client, partitions map[string][]int32) {
		m.lock.Lock()
		defer m.lock.Unlock()
		for _, partition := range partitions[topic] {
			m.owned[partition] = true
		}
	}
	m.client = connect(groupOptions(protocol, topic, append(options, kgo.OnPartitionsAssigned(assigned),
		kgo.OnPartitionsRevoked(revoked), kgo.OnPartitionsLost(gone))...)...)
	go m.run()
	return m
}

func (m *member) run() {
	defer close(m.ended)
	for {
		fetches := m.client.PollFetches(context.Background())
		if fetches.IsClientClosed() {
			return
		}
		m.lock.Lock()
		fetches.EachRecord(func(record *kgo.Record) {
			m.received[fmt.Sprint(record.Partition, "@", record.Offset)] = true
		})
		m.lock.Unlock()
	}
}

func (m *member) owns() int {
	m.lock.Lock()
	defer m.lock.Unlock()
	return len(m.owned)
}

func (m *member) close() {
	m.once.Do(func() {
		m.client.Close()
		<-m.ended
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
	producer := connect(kgo.RecordPartitioner(kgo.ManualPartitioner()))
	defer producer.Close()
	var records []*kgo.Record
	for partition := range partitions {
		for i := range each {
			records = append(records, &kgo.Record{Topic: topic, Partition: partition, Value: fmt.Append(nil, i)})
		}
	}
	must(producer.ProduceSync(ctx(), records...).FirstErr())
}

func committed(group string) map[int32]int64 {
	fetched, err := admin.FetchOffsets(ctx(), group)
	must(err)
	must(fetched.Error())
	found := map[int32]int64{}
	fetched.Each(func(offset kadm.OffsetResponse) { found[offset.Partition] = offset.At })
	return found
}

func described(group string) kadm.DescribedGroup {
	found, err := admin.DescribeGroups(ctx(), group)
	must(err)
	must(found.Error())
	return found[group]
}

func describedConsumers(group string) kadm.DescribedConsumerGroup {
	found, err := admin.DescribeConsumerGroups(ctx(), group)
	must(err)
	must(found.Error())
	return found[group]
}
