// What a broker owes groups of the Java client with group.protocol=consumer (KIP-848).
// How it is run is in Checks.java.

import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.CopyOnWriteArrayList;
import org.apache.kafka.clients.admin.ConsumerGroupDescription;
import org.apache.kafka.clients.admin.NewPartitions;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.SubscriptionPattern;
import org.apache.kafka.common.GroupState;
import org.apache.kafka.common.GroupType;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.InvalidRegularExpression;

public class ConsumerProtocol extends Checks {
    public static void main(String[] args) throws Exception {
        begin(args);
        check("share the partitions", ConsumerProtocol::share);
        check("commit and go on", ConsumerProtocol::commit);
        check("follow new partitions", ConsumerProtocol::grow);
        check("follow an expression", ConsumerProtocol::expression);
        check("refuse a bad expression", ConsumerProtocol::badExpression);
        check("a static member comes back", ConsumerProtocol::comeBack);
        check("describe the group", ConsumerProtocol::describe);
        check("take over from the classic protocol", ConsumerProtocol::takeOver);
        end();
    }

    // -- checks ------------------------------------------------------------------------------------------------

    static void share() throws Exception {
        String topic = create(6, Map.of()), group = name("g");
        try (Member a = new Member(group, topic, Map.of())) {
            await(() -> a.owned.size() == 6);
            Member b = new Member(group, topic, Map.of());
            await(() -> shared(6, a, b) && a.owned.size() == 3);
            b.close();
            await(() -> a.owned.size() == 6);
        }
    }

    static void commit() throws Exception {
        String topic = create(1, Map.of()), group = name("g");
        send(topic, 5);
        try (Member a = new Member(group, topic, Map.of())) {
            await(() -> a.received.size() == 5);
            a.commit();
        }
        send(topic, 2);
        try (Member b = new Member(group, topic, Map.of())) {
            await(() -> b.received.size() == 2);
            if (b.received.get(0).offset() != 5) {
                throw new AssertionError("begins at " + b.received.get(0).offset());
            }
        }
    }

    static void grow() throws Exception {
        String topic = create(2, Map.of()), group = name("g");
        try (Member a = new Member(group, topic, Map.of()); Member b = new Member(group, topic, Map.of())) {
            await(() -> shared(2, a, b) && a.owned.size() == 1);
            admin.createPartitions(Map.of(topic, NewPartitions.increaseTo(6))).all().get();
            await(() -> shared(6, a, b) && a.owned.size() == 3);
        }
    }

    static void expression() throws Exception {
        String stem = name("x"), group = name("g");
        create(stem + "-1", 2, Map.of());
        try (Member a = new Member(group, new SubscriptionPattern(stem + "-[0-9]+"), Map.of())) {
            await(() -> a.owned.size() == 2);
            create(stem + "-2", 1, Map.of());
            create(stem + "-other", 1, Map.of());
            await(() -> a.owned.size() == 3);
            admin.deleteTopics(List.of(stem + "-1")).all().get();
            await(() -> a.owned.equals(Set.of(new TopicPartition(stem + "-2", 0))));
        }
    }

    static void badExpression() throws Exception {
        try (Member a = new Member(name("g"), new SubscriptionPattern("("), Map.of())) {
            await(() -> a.failure != null);
            if (!(a.failure instanceof InvalidRegularExpression)) {
                throw new AssertionError(a.failure);
            }
        }
    }

    static void comeBack() throws Exception {
        String topic = create(4, Map.of()), group = name("g");
        Map<String, String> fixed = Map.of("group.instance.id", "i");
        try (Member other = new Member(group, topic, Map.of())) {
            Member first = new Member(group, topic, fixed);
            await(() -> shared(4, first, other) && other.owned.size() == 2);
            Set<TopicPartition> had = first.owned;
            first.close();
            try (Member back = new Member(group, topic, fixed)) {
                await(() -> back.owned.equals(had));
            }
        }
    }

    static void describe() throws Exception {
        String topic = create(2, Map.of()), group = name("g");
        try (Member a = new Member(group, topic, Map.of())) {
            await(() -> a.owned.size() == 2);
            ConsumerGroupDescription found = admin.describeConsumerGroups(List.of(group)).all().get().get(group);
            if (found.type() != GroupType.CONSUMER || found.groupState() != GroupState.STABLE
                || found.members().size() != 1 || !found.partitionAssignor().equals("uniform")) {
                throw new AssertionError(found);
            }
        }
    }

    static void takeOver() throws Exception {
        String topic = create(4, Map.of()), group = name("g");
        Map<String, String> classic = Map.of("group.protocol", "classic", "heartbeat.interval.ms", "300");
        try (Member old = new Member(group, topic, classic)) {
            await(() -> old.owned.size() == 4);
            Member young = new Member(group, topic, Map.of());
            await(() -> shared(4, old, young) && old.owned.size() == 2);
            young.close();
            await(() -> old.owned.size() == 4);
        }
    }

    // -- means -------------------------------------------------------------------------------------------------

    // A consumer on a thread of its own.
    static class Member implements AutoCloseable {
        volatile Set<TopicPartition> owned = Set.of();
        volatile Throwable failure;
        final List<ConsumerRecord<byte[], byte[]>> received = new CopyOnWriteArrayList<>();
        private volatile boolean over, committing;
        private final Thread thread;

        Member(String group, Object subscription, Map<String, String> settings) {
            thread = new Thread(() -> run(group, subscription, settings));
            thread.start();
        }

        private void run(String group, Object subscription, Map<String, String> settings) {
            Map<String, Object> config = new HashMap<>();
            config.put("group.id", group);
            config.put("group.protocol", "consumer");
            config.put("auto.offset.reset", "earliest");
            config.putAll(settings);
            try (KafkaConsumer<byte[], byte[]> consumer = consumer(config)) {
                if (subscription instanceof SubscriptionPattern pattern) {
                    consumer.subscribe(pattern);
                } else {
                    consumer.subscribe(List.of((String) subscription));
                }
                while (!over) {
                    consumer.poll(Duration.ofMillis(20)).forEach(received::add);
                    owned = new HashSet<>(consumer.assignment());
                    if (committing) {
                        consumer.commitSync();
                        committing = false;
                    }
                }
            } catch (Throwable thrown) {
                failure = thrown;
            }
            owned = Set.of();
        }

        void commit() throws Exception {
            committing = true;
            await(() -> !committing);
        }

        @Override
        public void close() throws Exception {
            over = true;
            thread.join(DEADLINE_MS);
        }
    }

    static boolean shared(int partitions, Member... members) {
        List<TopicPartition> all = new ArrayList<>();
        for (Member member : members) {
            all.addAll(member.owned);
        }
        return all.size() == partitions && new HashSet<>(all).size() == partitions;
    }
}
