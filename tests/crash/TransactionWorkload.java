// Transactional clients of the Java client that work under faults, and say all they do and see.
//
// Run as `java -cp <jars of kafka-clients> TransactionWorkload.java BOOTSTRAP INPUT INPUT_PARTITIONS OUTPUT
// OUTPUT_PARTITIONS SEED`. It works until a line comes in, ends what is open, waits until all logs are stable, reads
// everything once more, and ends. Each line of output is an event in JSON; `transaction_events.py` makes a history of
// them. Times are seconds of one clock.
//
// Writers send values to random partitions of INPUT; transformers, members of a group, read INPUT and write to OUTPUT
// with the offsets in the same transaction; readers of both isolation levels follow. Now and then an instance is
// replaced in the middle of a transaction by another one with its transactional id, and then goes on.

import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collections;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Random;
import java.util.Set;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.stream.Collectors;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.TimeoutException;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

public class TransactionWorkload {
    static final String GROUP = "transformers";
    static final int TRANSACTION_TIMEOUT_MS = 15_000;
    static final int STEP_MS = 6_000;
    static final long STABLE_SECONDS = 90;
    static String bootstrap;
    static long seed;
    static List<TopicPartition> inputs;
    static List<TopicPartition> outputs;
    static volatile boolean ending = false;

    public static void main(String[] args) throws Exception {
        bootstrap = args[0];
        inputs = partitions(args[1], Integer.parseInt(args[2]));
        outputs = partitions(args[3], Integer.parseInt(args[4]));
        seed = Long.parseLong(args[5]);
        List<Thread> threads = new ArrayList<>();
        for (int i = 0; i < 3; i++) {
            Writer writer = new Writer("writer-" + i, new Random(seed * 100 + i));
            threads.add(new Thread(writer::run, writer.id));
        }
        for (int i = 0; i < 2; i++) {
            Transformer transformer = new Transformer("transformer-" + i, new Random(seed * 100 + 10 + i));
            threads.add(new Thread(transformer::run, transformer.id));
        }
        for (boolean committed : new boolean[] {true, false}) {
            Random random = new Random(seed * 100 + 20);
            threads.add(new Thread(() -> follow(committed, random), "reader"));
        }
        for (Thread thread : threads) {
            thread.setUncaughtExceptionHandler((failed, error) -> {
                error.printStackTrace();
                System.exit(1);
            });
            thread.start();
        }
        System.in.read();
        ending = true;
        for (Thread thread : threads) {
            thread.join();
        }
        for (Thread zombie : Producer.zombies) {
            zombie.join();
        }
        finish();
    }

    // -- writing -----------------------------------------------------------------------------------------------

    /** One instance of a transactional id after another, and the transaction that the present one has open. */
    static class Producer {
        static final List<Thread> zombies = Collections.synchronizedList(new ArrayList<>());
        final String id;
        final Random random;
        final AtomicInteger values = new AtomicInteger();
        int instances = 0;

        Producer(String id, Random random) {
            this.id = id;
            this.random = random;
        }

        /** A new instance, or null when the cluster does not let it begin now. */
        Instance start() {
            Properties settings = client();
            settings.put("key.serializer", ByteArraySerializer.class.getName());
            settings.put("value.serializer", ByteArraySerializer.class.getName());
            settings.put("transactional.id", id);
            settings.put("transaction.timeout.ms", String.valueOf(TRANSACTION_TIMEOUT_MS));
            settings.put("delivery.timeout.ms", String.valueOf(STEP_MS));
            settings.put("request.timeout.ms", "3000");
            settings.put("max.block.ms", String.valueOf(STEP_MS));
            settings.put("linger.ms", "0");
            KafkaProducer<byte[], byte[]> producer = new KafkaProducer<>(settings);
            instances++;
            try {
                producer.initTransactions();
            } catch (KafkaException refused) {
                producer.close(Duration.ZERO);
                return null;
            }
            return new Instance(producer, instances);
        }

        class Instance {
            final KafkaProducer<byte[], byte[]> producer;
            final int number;
            int transactions = 0;
            String open;
            boolean isCommitted;

            Instance(KafkaProducer<byte[], byte[]> producer, int number) {
                this.producer = producer;
                this.number = number;
            }

            void begin() {
                producer.beginTransaction();
                transactions++;
                isCommitted = false;
                open = id + "." + number + "/" + transactions;
                say("begin", "name", open, "id", id, "instance", number, "number", transactions);
            }

            void send(TopicPartition place, ConsumerRecord<byte[], byte[]> source) {
                String value = id + ":" + values.incrementAndGet(), transaction = open;
                if (source == null) {
                    say("send", "name", transaction, "topic", place.topic(), "partition", place.partition(),
                        "value", value);
                } else {
                    say("send", "name", transaction, "topic", place.topic(), "partition", place.partition(),
                        "value", value, "group", GROUP, "source_topic", source.topic(),
                        "source_partition", source.partition(), "source_offset", source.offset());
                }
                byte[] bytes = value.getBytes(StandardCharsets.UTF_8);
                producer.send(new ProducerRecord<>(place.topic(), place.partition(), null, bytes), (metadata, error) -> {
                    if (error == null) {
                        say("acknowledged", "name", transaction, "value", value, "offset", metadata.offset());
                    }
                });
            }

            void offsets(Map<TopicPartition, OffsetAndMetadata> offsets, KafkaConsumer<byte[], byte[]> consumer) {
                offsets.forEach((place, offset) -> say("offsets", "name", open, "group", GROUP, "topic", place.topic(),
                    "partition", place.partition(), "offset", offset.offset()));
                producer.sendOffsetsToTransaction(offsets, consumer.groupMetadata());
            }

            /** Whether the instance can go on. */
            boolean commit() {
                say("commit", "name", open);
                long end = System.nanoTime() + 3L * STEP_MS * 1_000_000;
                while (true) {
                    try {
                        producer.commitTransaction();
                        isCommitted = true;
                        say("end", "name", open, "outcome", "committed");
                        return true;
                    } catch (TimeoutException late) {
                        if (System.nanoTime() > end) {
                            return failed(late);
                        }
                    } catch (KafkaException refused) {
                        note(refused);
                        return abort();
                    }
                }
            }

            /** If this succeeds, nothing can commit the transaction any more. */
            boolean abort() {
                long end = System.nanoTime() + 3L * STEP_MS * 1_000_000;
                while (true) {
                    try {
                        producer.abortTransaction();
                        say("end", "name", open, "outcome", "aborted");
                        return true;
                    } catch (TimeoutException late) {
                        if (System.nanoTime() > end) {
                            return failed(late);
                        }
                    } catch (KafkaException | IllegalStateException refused) {
                        return failed(refused);
                    }
                }
            }

            boolean failed(Exception why) {
                note(why);
                close();
                return false;
            }

            void note(Exception why) {
                say("refused", "name", open, "why", String.valueOf(why));
            }

            void close() {
                producer.close(Duration.ZERO);
            }
        }
    }

    static class Writer extends Producer {
        Writer(String id, Random random) {
            super(id, random);
        }

        void run() {
            while (!ending) {
                Instance instance = start();
                for (int i = random.nextInt(30); instance != null && !ending; i--) {
                    if (i < 0) {
                        replace(instance);
                        break;
                    }
                    if (!transaction(instance, 0)) {
                        instance = null;
                    }
                    pause(20);
                }
                if (instance != null && ending) {
                    instance.close();
                }
            }
        }

        /** It goes on when another one has taken its place, or is closed. */
        void replace(Instance instance) {
            if (random.nextBoolean()) {
                instance.close();
                return;
            }
            long stall = 500 + random.nextInt(6000);
            Thread zombie = new Thread(() -> {
                if (transaction(instance, stall) && transaction(instance, 0)) {
                    instance.close();
                }
            });
            Producer.zombies.add(zombie);
            zombie.start();
            pause(random.nextInt(500));
        }

        boolean transaction(Instance instance, long stall) {
            try {
                instance.begin();
                for (int steps = 1 + random.nextInt(4); steps > 0; steps--) {
                    TopicPartition place = inputs.get(random.nextInt(inputs.size()));
                    for (int records = 1 + random.nextInt(3); records > 0; records--) {
                        instance.send(place, null);
                    }
                }
                if (stall > 0) {
                    instance.producer.flush();
                    pause(stall);
                }
            } catch (KafkaException | IllegalStateException refused) {
                instance.note(refused);
                return instance.abort();
            }
            return random.nextInt(5) == 0 ? instance.abort() : instance.commit();
        }
    }

    static class Transformer extends Producer {
        Transformer(String id, Random random) {
            super(id, random);
        }

        void run() {
            Properties settings = consuming(true);
            settings.put("group.id", GROUP);
            settings.put("session.timeout.ms", "6000");
            settings.put("max.poll.records", "50");
            try (KafkaConsumer<byte[], byte[]> consumer = new KafkaConsumer<>(settings)) {
                consumer.subscribe(inputs.stream().map(TopicPartition::topic).distinct().collect(Collectors.toList()));
                Instance instance = null;
                while (!ending) {
                    if (instance == null) {
                        instance = start();
                        if (instance == null || !goToCommitted(consumer)) {
                            instance = closed(instance);
                            continue;
                        }
                    }
                    ConsumerRecords<byte[], byte[]> records = consumer.poll(Duration.ofMillis(200));
                    if (!records.isEmpty() && !transform(instance, consumer, records)) {
                        instance = closed(instance);
                    }
                }
                closed(instance);
            }
        }

        Instance closed(Instance instance) {
            if (instance != null) {
                instance.close();
            }
            return null;
        }

        /** Whether it was committed. If not, a new instance goes on at the committed offsets. */
        boolean transform(
            Instance instance, KafkaConsumer<byte[], byte[]> consumer, ConsumerRecords<byte[], byte[]> records) {
            try {
                instance.begin();
                Map<TopicPartition, OffsetAndMetadata> next = new HashMap<>();
                for (TopicPartition place : records.partitions()) {
                    for (ConsumerRecord<byte[], byte[]> each : records.records(place)) {
                        instance.send(outputs.get(random.nextInt(outputs.size())), each);
                    }
                    next.put(place, new OffsetAndMetadata(consumer.position(place)));
                }
                if (random.nextInt(20) == 0) {
                    pause(random.nextInt(8000));
                }
                instance.offsets(next, consumer);
            } catch (KafkaException | IllegalStateException refused) {
                instance.note(refused);
                instance.abort();
                return false;
            }
            return instance.commit() && instance.isCommitted;
        }

        boolean goToCommitted(KafkaConsumer<byte[], byte[]> consumer) {
            try {
                Set<TopicPartition> assigned = consumer.assignment();
                for (Map.Entry<TopicPartition, Long> each : committedOffsets(consumer, assigned).entrySet()) {
                    consumer.seek(each.getKey(), each.getValue());
                }
                return true;
            } catch (KafkaException | IllegalStateException refused) {
                return false;
            }
        }
    }

    // -- reading -----------------------------------------------------------------------------------------------

    /** Where the group goes on. */
    static Map<TopicPartition, Long> committedOffsets(KafkaConsumer<byte[], byte[]> consumer, Set<TopicPartition> of) {
        double asked = now();
        Map<TopicPartition, OffsetAndMetadata> found = consumer.committed(of, Duration.ofMillis(STEP_MS));
        Map<TopicPartition, Long> offsets = new HashMap<>();
        for (TopicPartition each : of) {
            long offset = found.get(each) == null ? -1 : found.get(each).offset();
            say("offset_read", "group", GROUP, "topic", each.topic(), "partition", each.partition(), "offset", offset,
                "asked", asked);
            offsets.put(each, Math.max(offset, 0));
        }
        return offsets;
    }

    static void follow(boolean committed, Random random) {
        int assignment = 0;
        String name = committed ? "reader of committed" : "reader of all";
        while (!ending) {
            try (KafkaConsumer<byte[], byte[]> consumer = new KafkaConsumer<>(consuming(committed))) {
                Reader reader = new Reader(consumer, name, ++assignment, committed, everything());
                for (int polls = 50 + random.nextInt(200); polls > 0 && !ending; polls--) {
                    reader.poll();
                }
            }
        }
    }

    static class Reader {
        final KafkaConsumer<byte[], byte[]> consumer;
        final String name;
        final int assignment;
        final boolean committed;
        final Map<TopicPartition, Long> positions = new HashMap<>();

        Reader(KafkaConsumer<byte[], byte[]> consumer, String name, int assignment, boolean committed,
            List<TopicPartition> places) {
            this.consumer = consumer;
            this.name = name;
            this.assignment = assignment;
            this.committed = committed;
            consumer.assign(places);
            for (TopicPartition place : places) {
                consumer.seek(place, 0);
                positions.put(place, 0L);
            }
        }

        void poll() {
            ConsumerRecords<byte[], byte[]> records = consumer.poll(Duration.ofMillis(100));
            for (Map.Entry<TopicPartition, Long> each : positions.entrySet()) {
                TopicPartition place = each.getKey();
                long start = each.getValue(), end = consumer.position(place);
                List<ConsumerRecord<byte[], byte[]>> found = records.records(place);
                if (end == start && found.isEmpty()) {
                    continue;
                }
                String values = found.stream()
                    .map(r -> "[" + r.offset() + ", " + quoted(new String(r.value(), StandardCharsets.UTF_8)) + "]")
                    .collect(Collectors.joining(", ", "[", "]"));
                say("poll", "reader", name, "assignment", assignment, "committed", committed, "topic", place.topic(),
                    "partition", place.partition(), "start", start, "end", end, "records", new Json(values));
                each.setValue(end);
            }
        }
    }

    // -- the end -----------------------------------------------------------------------------------------------

    static void finish() throws Exception {
        Map<TopicPartition, Long> ends = new HashMap<>();
        long deadline = System.nanoTime() + STABLE_SECONDS * 1_000_000_000L;
        try (KafkaConsumer<byte[], byte[]> stable = new KafkaConsumer<>(consuming(true));
            KafkaConsumer<byte[], byte[]> all = new KafkaConsumer<>(consuming(false))) {
            Duration patience = Duration.ofSeconds(STABLE_SECONDS);
            Map<TopicPartition, Long> stableEnds;
            do {
                Thread.sleep(200);
                stableEnds = stable.endOffsets(everything(), patience);
                ends = all.endOffsets(everything(), patience);
            } while (!stableEnds.equals(ends) && System.nanoTime() < deadline);
            for (TopicPartition each : everything()) {
                say("log_end", "topic", each.topic(), "partition", each.partition(), "stable", stableEnds.get(each),
                    "end", ends.get(each));
            }
            readTo(new Reader(stable, "last reader of committed", 1, true, everything()), stableEnds, deadline);
            readTo(new Reader(all, "last reader of all", 1, false, everything()), ends, deadline);
        }
        Properties settings = consuming(true);
        settings.put("group.id", GROUP);
        try (KafkaConsumer<byte[], byte[]> consumer = new KafkaConsumer<>(settings)) {
            committedOffsets(consumer, Set.copyOf(inputs)).forEach((place, offset) -> say("final_offset", "group", GROUP,
                "topic", place.topic(), "partition", place.partition(), "offset", offset));
        }
        say("done");
    }

    static void readTo(Reader reader, Map<TopicPartition, Long> ends, long deadline) {
        while (!ends.entrySet().stream().allMatch(each -> reader.positions.get(each.getKey()) >= each.getValue())) {
            if (System.nanoTime() > deadline) {
                throw new AssertionError(reader.name + " got to " + reader.positions + " of " + ends);
            }
            reader.poll();
        }
    }

    // -- what all use ------------------------------------------------------------------------------------------

    static class Json {
        final String text;

        Json(String text) {
            this.text = text;
        }
    }

    static void say(String event, Object... fields) {
        StringBuilder line = new StringBuilder("{\"event\": ").append(quoted(event)).append(", \"at\": ").append(now());
        for (int i = 0; i < fields.length; i += 2) {
            Object value = fields[i + 1];
            String text = value instanceof Json json ? json.text
                : value instanceof String string ? quoted(string) : String.valueOf(value);
            line.append(", ").append(quoted((String) fields[i])).append(": ").append(text);
        }
        synchronized (System.out) {
            System.out.println(line.append('}'));
        }
    }

    static String quoted(String text) {
        StringBuilder out = new StringBuilder("\"");
        for (char c : text.toCharArray()) {
            out.append(c == '"' || c == '\\' ? "\\" + c : c < ' ' ? " " : String.valueOf(c));
        }
        return out.append('"').toString();
    }

    static double now() {
        return System.nanoTime() / 1e9;
    }

    static void pause(long ms) {
        try {
            Thread.sleep(ms);
        } catch (InterruptedException interrupted) {
            throw new IllegalStateException(interrupted);
        }
    }

    static List<TopicPartition> partitions(String topic, int count) {
        List<TopicPartition> found = new ArrayList<>();
        for (int i = 0; i < count; i++) {
            found.add(new TopicPartition(topic, i));
        }
        return found;
    }

    static List<TopicPartition> everything() {
        List<TopicPartition> all = new ArrayList<>(inputs);
        all.addAll(outputs);
        return all;
    }

    static Properties client() {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", bootstrap);
        settings.put("metadata.max.age.ms", "2000");
        settings.put("reconnect.backoff.max.ms", "300");
        settings.put("retry.backoff.max.ms", "300");
        return settings;
    }

    static Properties consuming(boolean committed) {
        Properties settings = client();
        settings.put("key.deserializer", ByteArrayDeserializer.class.getName());
        settings.put("value.deserializer", ByteArrayDeserializer.class.getName());
        settings.put("auto.offset.reset", "earliest");
        settings.put("enable.auto.commit", "false");
        settings.put("request.timeout.ms", "4000");
        settings.put("default.api.timeout.ms", "60000");
        settings.put("isolation.level", committed ? "read_committed" : "read_uncommitted");
        return settings;
    }
}
