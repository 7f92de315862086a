// What a broker owes the Java client as a member of groups, in either protocol, and as an admin of them.
//
// Every check is done once for each protocol: "classic" (eager), "cooperative" and "consumer" (KIP-848).

import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicReference;
import java.util.stream.Collectors;
import java.util.stream.IntStream;
import org.apache.kafka.clients.admin.ConsumerGroupDescription;
import org.apache.kafka.clients.admin.ConsumerGroupListing;
import org.apache.kafka.clients.admin.MemberDescription;
import org.apache.kafka.clients.admin.MemberToRemove;
import org.apache.kafka.clients.admin.NewPartitions;
import org.apache.kafka.clients.admin.RemoveMembersFromConsumerGroupOptions;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.FencedInstanceIdException;
import org.apache.kafka.common.errors.GroupIdNotFoundException;
import org.apache.kafka.common.errors.GroupNotEmptyException;
import org.apache.kafka.common.errors.GroupSubscribedToTopicException;
import org.apache.kafka.common.errors.UnknownMemberIdException;
import org.apache.kafka.common.errors.UnreleasedInstanceIdException;

class Groups extends Checks {
    static final String ASSIGNORS = "org.apache.kafka.clients.consumer.";
    static final Map<String, Map<String, Object>> PROTOCOLS = Map.of(
        "classic", Map.of("partition.assignment.strategy", ASSIGNORS + "RangeAssignor"),
        "cooperative", Map.of("partition.assignment.strategy", ASSIGNORS + "CooperativeStickyAssignor"),
        "consumer", Map.of("group.protocol", "consumer"));

    static void check() {
        for (String protocol : List.of("classic", "cooperative", "consumer")) {
            check("share a topic, " + protocol, () -> share(protocol));
        }
        for (String protocol : List.of("classic", "consumer")) {
            check("keep commits over a restart, " + protocol, () -> commits(protocol));
            check("static members come back, " + protocol, () -> staticMembers(protocol));
            check("read partitions that are added, " + protocol, () -> grow(protocol));
            check("list and describe groups, " + protocol, () -> describe(protocol));
            check("list, alter and delete offsets, " + protocol, () -> offsets(protocol));
            check("remove members and delete a group, " + protocol, () -> delete(protocol));
        }
    }

    static void share(String protocol) throws Exception {
        String topic = create(4, Map.of());
        produce(topic, 4, 10);
        Set<String> all = new HashSet<>();
        try (Member first = new Member(protocol, topic, topic)) {
            await(() -> first.owned.size() == 4 && first.received.size() == 40);
            try (Member second = new Member(protocol, topic, topic)) {
                await(() -> first.owned.size() == 2 && second.owned.size() == 2);
                all.addAll(first.owned);
                all.addAll(second.owned);
                equal(4, all.size());
                produce(topic, 4, 10);
                await(() -> first.received.size() + second.received.size() == 80);
                equal(20, second.received.size());
            }
            await(() -> first.owned.size() == 4);
            produce(topic, 4, 10);
            await(() -> first.received.size() == 100);
            equal(100, new HashSet<>(first.received).size());
        }
    }

    static void commits(String protocol) throws Exception {
        String topic = create(1, Map.of());
        TopicPartition partition = new TopicPartition(topic, 0);
        produce(topic, 1, 10);
        try (KafkaConsumer<byte[], byte[]> consumer = consumer(protocol, topic, Map.of())) {
            consumer.subscribe(List.of(topic));
            equal(10, poll(consumer, 10).size());
            consumer.commitSync(Map.of(partition, new OffsetAndMetadata(4, "four")));
        }
        try (KafkaConsumer<byte[], byte[]> consumer = consumer(protocol, topic, Map.of())) {
            consumer.subscribe(List.of(topic));
            equal(4L, poll(consumer, 6).get(0).offset());
            equal(new OffsetAndMetadata(4, "four"), consumer.committed(Set.of(partition)).get(partition));
            AtomicInteger committed = new AtomicInteger();
            consumer.commitAsync((offsets, failure) -> committed.set(failure == null ? 1 : -1));
            long deadline = System.currentTimeMillis() + DEADLINE_MS;
            while (committed.get() == 0 && System.currentTimeMillis() < deadline) {
                consumer.poll(POLL);
            }
            equal(1, committed.get());
            equal(10L, consumer.committed(Set.of(partition)).get(partition).offset());
            consumer.seekToBeginning(List.of(partition));
            equal(0L, poll(consumer, 10).get(0).offset());
        }
    }

    static void staticMembers(String protocol) throws Exception {
        String topic = create(4, Map.of());
        Map<String, Object> one = Map.of("group.instance.id", "one");
        Map<String, Object> two = Map.of("group.instance.id", "two");
        try (Member second = new Member(protocol, topic, topic, two)) {
            Set<String> kept;
            try (Member first = new Member(protocol, topic, topic, one)) {
                await(() -> first.owned.size() == 2 && second.owned.size() == 2);
                kept = first.owned;
            }
            int rebalances = second.rebalances.get();
            try (Member again = new Member(protocol, topic, topic, one)) {
                await(() -> again.owned.equals(kept));
                produce(topic, 4, 5);
                await(() -> again.received.size() == 10 && second.received.size() == 10);
                equal(rebalances, second.rebalances.get());
                // In the classic protocol the newcomer drives the old one out, in the other it is refused.
                try (Member rival = new Member(protocol, topic, topic, one)) {
                    Member loser = protocol.equals("consumer") ? rival : again;
                    await(() -> loser.failure.get() != null);
                    equal(
                        protocol.equals("consumer") ? UnreleasedInstanceIdException.class : FencedInstanceIdException.class,
                        loser.failure.get().getClass());
                }
            }
        }
    }

    static void grow(String protocol) throws Exception {
        String topic = create(1, Map.of());
        try (Member member = new Member(protocol, topic, topic, Map.of("metadata.max.age.ms", "300"))) {
            await(() -> member.owned.size() == 1);
            admin.createPartitions(Map.of(topic, NewPartitions.increaseTo(3))).all().get();
            await(() -> member.owned.size() == 3);
            produce(topic, 3, 5);
            await(() -> member.received.size() == 15);
        }
    }

    static void describe(String protocol) throws Exception {
        String topic = create(4, Map.of());
        try (Member first = new Member(protocol, topic, topic);
             Member second = new Member(protocol, topic, topic, Map.of("group.instance.id", "two"))) {
            await(() -> first.owned.size() == 2 && second.owned.size() == 2);
            await(() -> describeGroup(topic).state().toString().equals("Stable"));
            ConsumerGroupDescription described = describeGroup(topic);
            equal(protocol, described.type().toString().toLowerCase());
            equal(false, described.isSimpleConsumerGroup());
            equal(true, admin.describeCluster().nodes().get().contains(described.coordinator()));
            equal(protocol.equals("consumer") ? "uniform" : "range", described.partitionAssignor());
            equal(2, described.members().size());
            Set<TopicPartition> assigned = new HashSet<>();
            for (MemberDescription member : described.members()) {
                equal(2, member.assignment().topicPartitions().size());
                equal("conformance", member.clientId());
                assigned.addAll(member.assignment().topicPartitions());
            }
            equal(4, assigned.size());
            equal(1L, described.members().stream()
                .filter(member -> member.groupInstanceId().equals(java.util.Optional.of("two"))).count());
            ConsumerGroupListing listed = listed(topic);
            equal(protocol, listed.type().get().toString().toLowerCase());
            equal("Stable", listed.state().get().toString());
        }
    }

    static void offsets(String protocol) throws Exception {
        String topic = create(2, Map.of());
        TopicPartition zero = new TopicPartition(topic, 0);
        TopicPartition one = new TopicPartition(topic, 1);
        produce(topic, 2, 10);
        try (Member member = new Member(protocol, topic, topic)) {
            await(() -> member.received.size() == 20);
            fails(UnknownMemberIdException.class,
                admin.alterConsumerGroupOffsets(topic, Map.of(zero, new OffsetAndMetadata(1))).all());
            fails(GroupSubscribedToTopicException.class,
                admin.deleteConsumerGroupOffsets(topic, Set.of(zero)).partitionResult(zero));
        }
        equal(Map.of(zero, 10L, one, 10L), committed(topic));
        admin.alterConsumerGroupOffsets(topic, Map.of(zero, new OffsetAndMetadata(3))).all().get();
        equal(Map.of(zero, 3L, one, 10L), committed(topic));
        admin.deleteConsumerGroupOffsets(topic, Set.of(one)).all().get();
        equal(Map.of(zero, 3L), committed(topic));
        try (Member member = new Member(protocol, topic, topic)) {
            await(() -> member.received.size() == 17);
        }
    }

    static void delete(String protocol) throws Exception {
        String topic = create(1, Map.of());
        try (Member member = new Member(protocol, topic, topic, Map.of("group.instance.id", "one"))) {
            await(() -> member.owned.size() == 1);
            fails(GroupNotEmptyException.class,
                admin.deleteConsumerGroups(List.of(topic)).deletedGroups().get(topic));
        }
        // A static member that has closed is expected back, so the group is not empty until it is removed.
        admin.removeMembersFromConsumerGroup(topic,
            new RemoveMembersFromConsumerGroupOptions(Set.of(new MemberToRemove("one")))).all().get();
        equal(0, describeGroup(topic).members().size());
        admin.deleteConsumerGroups(List.of(topic)).all().get();
        equal(null, listed(topic));
        fails(GroupIdNotFoundException.class,
            admin.deleteConsumerGroups(List.of(topic)).all());
    }

    // -- the client --------------------------------------------------------------------------------------------

    /** A consumer that polls on a thread of its own, and commits by itself when it must. */
    static class Member implements AutoCloseable {
        volatile Set<String> owned = Set.of();
        final List<String> received = java.util.Collections.synchronizedList(new ArrayList<>());
        final AtomicInteger rebalances = new AtomicInteger();
        final AtomicReference<Exception> failure = new AtomicReference<>();
        private volatile boolean over = false;
        private final Thread thread;

        Member(String protocol, String group, String topic) {
            this(protocol, group, topic, Map.of());
        }

        Member(String protocol, String group, String topic, Map<String, Object> extra) {
            Map<String, Object> settings = new HashMap<>(extra);
            settings.put("enable.auto.commit", "true");
            thread = new Thread(() -> run(protocol, group, topic, settings));
            thread.start();
        }

        private void run(String protocol, String group, String topic, Map<String, Object> settings) {
            try (KafkaConsumer<byte[], byte[]> consumer = consumer(protocol, group, settings)) {
                consumer.subscribe(List.of(topic), new ConsumerRebalanceListener() {
                    @Override
                    public void onPartitionsRevoked(java.util.Collection<TopicPartition> partitions) {
                        rebalances.incrementAndGet();
                    }

                    @Override
                    public void onPartitionsAssigned(java.util.Collection<TopicPartition> partitions) {
                        rebalances.incrementAndGet();
                    }
                });
                while (!over) {
                    for (ConsumerRecord<byte[], byte[]> record : consumer.poll(Duration.ofMillis(50))) {
                        received.add(record.partition() + "@" + record.offset());
                    }
                    owned = consumer.assignment().stream().map(TopicPartition::toString).collect(Collectors.toSet());
                }
            } catch (Exception problem) {
                failure.compareAndSet(null, problem);
            }
        }

        @Override
        public void close() throws InterruptedException {
            over = true;
            thread.join();
        }
    }

    static KafkaConsumer<byte[], byte[]> consumer(String protocol, String group, Map<String, Object> extra) {
        Map<String, Object> settings = new HashMap<>(PROTOCOLS.get(protocol));
        settings.put("group.id", group);
        settings.put("auto.offset.reset", "earliest");
        if (!protocol.equals("consumer")) {
            settings.put("heartbeat.interval.ms", "300");
        }
        settings.putAll(extra);
        return consumer(settings);
    }

    static void produce(String topic, int partitions, int each) throws Exception {
        try (KafkaProducer<byte[], byte[]> producer = producer(Map.of())) {
            for (int partition : IntStream.range(0, partitions).toArray()) {
                for (int i = 0; i < each; i++) {
                    producer.send(new ProducerRecord<>(topic, partition, null, bytes("v" + i)));
                }
            }
        }
    }

    static ConsumerGroupDescription describeGroup(String group) throws Exception {
        return admin.describeConsumerGroups(List.of(group)).all().get().get(group);
    }

    static ConsumerGroupListing listed(String group) throws Exception {
        return admin.listConsumerGroups().all().get().stream()
            .filter(each -> each.groupId().equals(group)).findFirst().orElse(null);
    }

    static Map<TopicPartition, Long> committed(String group) throws Exception {
        return admin.listConsumerGroupOffsets(group).partitionsToOffsetAndMetadata().get().entrySet()
            .stream().collect(Collectors.toMap(Map.Entry::getKey, entry -> entry.getValue().offset()));
    }
}
