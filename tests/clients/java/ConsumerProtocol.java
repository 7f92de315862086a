// What a broker owes groups of the Java client with group.protocol=consumer (KIP-848).
//
// Run as `java -cp <jars of kafka-clients> ConsumerProtocol.java BOOTSTRAP PREFIX`. Prints one line of JSON for
// each check: {"check": name, "ok": true} or {"check": name, "ok": false, "detail": why}.

import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Properties;
import java.util.Set;
import java.util.concurrent.CopyOnWriteArrayList;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.ConsumerGroupDescription;
import org.apache.kafka.clients.admin.NewPartitions;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.SubscriptionPattern;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.GroupState;
import org.apache.kafka.common.GroupType;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.InvalidRegularExpression;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

public class ConsumerProtocol {
    interface Check {
        void run() throws Exception;
    }

    interface Condition {
        boolean holds() throws Exception;
    }

    static final long DEADLINE_MS = 40_000;
    static String bootstrap;
    static String prefix;
    static Admin admin;
    static int named = 0;

    public static void main(String[] args) throws Exception {
        bootstrap = args[0];
        prefix = args[1];
        admin = Admin.create(common());
        check("share the partitions", ConsumerProtocol::share);
        check("commit and go on", ConsumerProtocol::commit);
        check("follow new partitions", ConsumerProtocol::grow);
        check("follow an expression", ConsumerProtocol::expression);
        check("refuse a bad expression", ConsumerProtocol::badExpression);
        check("a static member comes back", ConsumerProtocol::comeBack);
        check("describe the group", ConsumerProtocol::describe);
        check("take over from the classic protocol", ConsumerProtocol::takeOver);
        admin.close(Duration.ofSeconds(5));
    }

    static void check(String name, Check check) {
        String detail = null;
        try {
            check.run();
        } catch (Throwable failure) {
            detail = failure + " at " + Arrays.stream(failure.getStackTrace())
                .filter(frame -> frame.getClassName().startsWith("ConsumerProtocol")).findFirst().orElse(null);
        }
        System.out.println("{\"check\": " + quoted(name) + ", \"ok\": " + (detail == null)
            + (detail == null ? "" : ", \"detail\": " + quoted(detail)) + "}");
    }

    static String quoted(String text) {
        StringBuilder out = new StringBuilder("\"");
        for (char c : text.toCharArray()) {
            out.append(c == '"' || c == '\\' ? "\\" + c : c < ' ' ? " " : String.valueOf(c));
        }
        return out.append('"').toString();
    }

    // -- checks ------------------------------------------------------------------------------------------------

    static void share() throws Exception {
        String topic = topic(6), group = name("g");
        try (Member a = new Member(group, topic, Map.of())) {
            await(() -> a.owned.size() == 6);
            Member b = new Member(group, topic, Map.of());
            await(() -> shared(6, a, b) && a.owned.size() == 3);
            b.close();
            await(() -> a.owned.size() == 6);
        }
    }

    static void commit() throws Exception {
        String topic = topic(1), group = name("g");
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
        String topic = topic(2), group = name("g");
        try (Member a = new Member(group, topic, Map.of()); Member b = new Member(group, topic, Map.of())) {
            await(() -> shared(2, a, b) && a.owned.size() == 1);
            admin.createPartitions(Map.of(topic, NewPartitions.increaseTo(6))).all().get();
            await(() -> shared(6, a, b) && a.owned.size() == 3);
        }
    }

    static void expression() throws Exception {
        String stem = name("x"), group = name("g");
        create(stem + "-1", 2);
        try (Member a = new Member(group, new SubscriptionPattern(stem + "-[0-9]+"), Map.of())) {
            await(() -> a.owned.size() == 2);
            create(stem + "-2", 1);
            create(stem + "-other", 1);
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
        String topic = topic(4), group = name("g");
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
        String topic = topic(2), group = name("g");
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
        String topic = topic(4), group = name("g");
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
            Properties config = common();
            config.put("group.id", group);
            config.put("group.protocol", "consumer");
            config.put("auto.offset.reset", "earliest");
            config.put("enable.auto.commit", "false");
            config.put("key.deserializer", ByteArrayDeserializer.class.getName());
            config.put("value.deserializer", ByteArrayDeserializer.class.getName());
            config.putAll(settings);
            try (KafkaConsumer<byte[], byte[]> consumer = new KafkaConsumer<>(config)) {
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

    static Properties common() {
        Properties config = new Properties();
        config.put("bootstrap.servers", bootstrap);
        return config;
    }

    static String name(String kind) {
        return prefix + "-" + kind + named++;
    }

    static String topic(int partitions) throws Exception {
        return create(name("t"), partitions);
    }

    static String create(String topic, int partitions) throws Exception {
        admin.createTopics(List.of(new NewTopic(topic, Optional.of(partitions), Optional.empty()))).all().get();
        return topic;
    }

    static void send(String topic, int count) throws Exception {
        Properties config = common();
        config.put("key.serializer", ByteArraySerializer.class.getName());
        config.put("value.serializer", ByteArraySerializer.class.getName());
        try (KafkaProducer<byte[], byte[]> producer = new KafkaProducer<>(config)) {
            for (int i = 0; i < count; i++) {
                producer.send(new ProducerRecord<>(topic, 0, null, ("" + i).getBytes(StandardCharsets.UTF_8))).get();
            }
        }
    }

    static void await(Condition condition) throws Exception {
        long deadline = System.currentTimeMillis() + DEADLINE_MS;
        while (!condition.holds()) {
            if (System.currentTimeMillis() > deadline) {
                throw new AssertionError("waited in vain");
            }
            Thread.sleep(10);
        }
    }
}
