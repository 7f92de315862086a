// What the programs of this folder share: how a check is run and told, topics and names of one run, clients with
// short waits, and waiting for a condition. A program extends this class, so that it can use all of it by name.
//
// Each program is run as `PROGRAM BOOTSTRAP PREFIX` and prints one line of JSON for each check:
// {"check": name, "ok": true} or {"check": name, "ok": false, "detail": why}.

import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.Optional;
import java.util.Properties;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Future;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.TopicDescription;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.errors.UnknownTopicOrPartitionException;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

class Checks {
    interface Check {
        void run() throws Exception;
    }

    interface Condition {
        boolean holds() throws Exception;
    }

    static final Duration POLL = Duration.ofMillis(200);
    static final long DEADLINE_MS = 60_000;
    static String bootstrap;
    static int brokers;
    static Admin admin;
    private static String prefix;
    private static int named = 0;

    static void begin(String[] args) {
        bootstrap = args[0];
        brokers = bootstrap.split(",").length;
        prefix = args[1];
        admin = Admin.create(common());
    }

    static void end() {
        admin.close(Duration.ofSeconds(5));
    }

    static void check(String name, Check check) {
        String detail = null;
        try {
            check.run();
        } catch (Throwable failure) {
            detail = failure + " at " + Arrays.stream(failure.getStackTrace())
                .filter(frame -> !frame.getClassName().contains(".") && !frame.getClassName().startsWith("Checks"))
                .findFirst().orElse(null);
        }
        System.out.println("{\"check\": " + quoted(name) + ", \"ok\": " + (detail == null)
            + (detail == null ? "" : ", \"detail\": " + quoted(detail)) + "}");
    }

    private static String quoted(String text) {
        StringBuilder out = new StringBuilder("\"");
        for (char c : text.toCharArray()) {
            out.append(c == '"' || c == '\\' ? "\\" + c : c < ' ' ? " " : String.valueOf(c));
        }
        return out.append('"').toString();
    }

    // -- clients -----------------------------------------------------------------------------------------------

    static Properties common() {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", bootstrap);
        settings.put("client.id", "conformance");
        settings.put("request.timeout.ms", "20000");
        settings.put("default.api.timeout.ms", "30000");
        return settings;
    }

    static KafkaProducer<byte[], byte[]> producer(Map<String, ?> extra) {
        Properties settings = common();
        settings.remove("default.api.timeout.ms");
        settings.put("max.block.ms", "60000");
        settings.put("delivery.timeout.ms", "30000");
        settings.putAll(extra);
        return new KafkaProducer<>(settings, new ByteArraySerializer(), new ByteArraySerializer());
    }

    static KafkaConsumer<byte[], byte[]> consumer(Map<String, ?> extra) {
        Properties settings = common();
        settings.put("enable.auto.commit", "false");
        settings.put("auto.offset.reset", "none");
        settings.put("max.partition.fetch.bytes", "2000000");
        settings.put("fetch.max.wait.ms", "100");  // closing a consumer waits for its last fetch
        settings.putAll(extra);
        return new KafkaConsumer<>(settings, new ByteArrayDeserializer(), new ByteArrayDeserializer());
    }

    static List<ConsumerRecord<byte[], byte[]>> poll(KafkaConsumer<byte[], byte[]> consumer, int count) {
        List<ConsumerRecord<byte[], byte[]>> records = new ArrayList<>();
        long deadline = System.currentTimeMillis() + DEADLINE_MS;
        while (records.size() < count) {
            if (System.currentTimeMillis() > deadline) {
                throw new AssertionError("only " + records.size() + " of " + count + " records");
            }
            consumer.poll(POLL).forEach(records::add);
        }
        return records;
    }

    static void send(String topic, int count) throws Exception {
        try (KafkaProducer<byte[], byte[]> producer = producer(Map.of())) {
            for (int i = 0; i < count; i++) {
                producer.send(new ProducerRecord<>(topic, 0, null, bytes("v" + i))).get();
            }
        }
    }

    // -- topics ------------------------------------------------------------------------------------------------

    static synchronized String name(String kind) {
        return prefix + "-" + kind + named++;
    }

    static String create(int partitions, Map<String, String> configs) throws Exception {
        return create(name("t"), partitions, configs);
    }

    static String create(String name, int partitions, Map<String, String> configs) throws Exception {
        NewTopic topic = new NewTopic(name, Optional.of(partitions), Optional.empty()).configs(configs);
        admin.createTopics(List.of(topic)).all().get();
        await(() -> described(name).partitions().size() == partitions);
        return name;
    }

    static TopicDescription described(String topic) throws Exception {
        return admin.describeTopics(List.of(topic)).allTopicNames().get().get(topic);
    }

    // -- conditions --------------------------------------------------------------------------------------------

    /** A cluster tells its brokers of a change a moment after it tells the client. */
    static void await(Condition condition) throws Exception {
        long deadline = System.currentTimeMillis() + DEADLINE_MS;
        while (true) {
            try {
                if (condition.holds()) {
                    return;
                }
            } catch (ExecutionException notYet) {
                if (!(notYet.getCause() instanceof UnknownTopicOrPartitionException)) {
                    throw notYet;
                }
            }
            if (System.currentTimeMillis() > deadline) {
                throw new AssertionError("waited in vain");
            }
            Thread.sleep(10);
        }
    }

    static void fails(Class<? extends Exception> expected, Future<?> future) throws Exception {
        try {
            future.get();
        } catch (ExecutionException failure) {
            equal(expected.getName(), failure.getCause().getClass().getName());
            return;
        }
        throw new AssertionError("no " + expected.getSimpleName());
    }

    static void equal(Object expected, Object found) {
        if (!Objects.equals(expected, found)) {
            throw new AssertionError("expected " + expected + ", found " + found);
        }
    }

    static byte[] bytes(String text) {
        return text.getBytes(StandardCharsets.UTF_8);
    }

    static String text(byte[] bytes) {
        return new String(bytes, StandardCharsets.UTF_8);
    }
}
