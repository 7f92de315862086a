// What a broker owes transactional producers of the Java client; 4.x speaks the second protocol (KIP-890).
// How it is run is in Checks.java, consume-transform-produce in Copying.java.

import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.kafka.clients.admin.TransactionDescription;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.InvalidProducerEpochException;
import org.apache.kafka.common.errors.ProducerFencedException;

public class Transactions extends Checks {
    static final int PARTITIONS = 3;

    public static void main(String[] args) throws Exception {
        begin(args);
        check("commit and abort", Transactions::commitAndAbort);
        check("an open transaction is invisible", Transactions::open);
        check("a second instance fences the first", Transactions::fence);
        check("offsets count with the transaction", Transactions::offsets);
        check("each transaction has its own epoch", Transactions::epochs);
        check("a transaction runs out of time", Transactions::timeout);
        check("an administrator fences a producer", Transactions::fenceByAdmin);
        for (String protocol : Groups.PROTOCOLS.keySet()) {
            check("copy with rebalances in between, " + protocol, () -> Copying.withRebalances(protocol));
        }
        end();
    }

    // -- checks ------------------------------------------------------------------------------------------------

    static void commitAndAbort() throws Exception {
        String topic = topic(), id = name("tx");
        try (KafkaProducer<byte[], byte[]> producer = producer(id, 60_000)) {
            for (String outcome : List.of("kept-1", "dropped-1", "kept-2", "dropped-2", "kept-3")) {
                producer.beginTransaction();
                send(producer, topic, outcome);
                if (outcome.startsWith("kept")) {
                    producer.commitTransaction();
                } else {
                    producer.flush();
                    producer.abortTransaction();
                }
            }
        }
        expect(topic, "read_committed", "kept-1", "kept-2", "kept-3");
        expect(topic, "read_uncommitted", "dropped-1", "dropped-2", "kept-1", "kept-2", "kept-3");
    }

    static void open() throws Exception {
        String topic = topic();
        try (KafkaProducer<byte[], byte[]> producer = producer(name("tx"), 60_000)) {
            producer.beginTransaction();
            send(producer, topic, "soon");
            producer.flush();
            expect(topic, "read_committed");
            producer.commitTransaction();
            expect(topic, "read_committed", "soon");
        }
    }

    static void fence() throws Exception {
        String topic = topic(), id = name("tx");
        KafkaProducer<byte[], byte[]> first = producer(id, 60_000);
        first.beginTransaction();
        send(first, topic, "zombie");
        first.flush();
        try (KafkaProducer<byte[], byte[]> second = producer(id, 60_000)) {
            second.beginTransaction();
            send(second, topic, "heir");
            second.commitTransaction();
            try {
                send(first, topic, "late");
                first.commitTransaction();
                throw new AssertionError("the first instance was not fenced");
            } catch (ProducerFencedException | InvalidProducerEpochException fenced) {
                // as it should be
            } catch (KafkaException wrapped) {
                boolean isFenced = wrapped.getCause() instanceof ProducerFencedException
                    || wrapped.getCause() instanceof InvalidProducerEpochException;
                if (!isFenced) {
                    throw wrapped;
                }
            }
            second.beginTransaction();
            send(second, topic, "again");
            second.commitTransaction();
        } finally {
            first.close(Duration.ZERO);
        }
        expect(topic, "read_committed", "again", "heir");
    }

    static void offsets() throws Exception {
        String input = topic(), output = topic(), group = name("g");
        try (KafkaProducer<byte[], byte[]> plain = producer(Map.of())) {
            for (int i = 0; i < 10; i++) {
                plain.send(new ProducerRecord<>(input, 0, null, bytes("r" + i)));
            }
        }
        try (KafkaProducer<byte[], byte[]> producer = producer(name("tx"), 60_000)) {
            copy(producer, input, output, group, false);
            copy(producer, input, output, group, true);
            copy(producer, input, output, group, true);
        }
        expect(output, "read_committed", "r0", "r1", "r2", "r3", "r4", "r5", "r6", "r7", "r8", "r9");
        Map<TopicPartition, OffsetAndMetadata> committed =
            admin.listConsumerGroupOffsets(group).partitionsToOffsetAndMetadata().get();
        if (committed.get(new TopicPartition(input, 0)).offset() != 10) {
            throw new AssertionError("committed " + committed);
        }
    }

    /** Copies five records in a transaction, with the offsets of the group. */
    static void copy(
        KafkaProducer<byte[], byte[]> producer, String input, String output, String group, boolean commit
    ) throws Exception {
        Map<String, Object> settings = new HashMap<>(reading("read_committed"));
        settings.put("group.id", group);
        settings.put("max.poll.records", "5");
        try (KafkaConsumer<byte[], byte[]> consumer = consumer(settings)) {
            consumer.subscribe(List.of(input));
            List<ConsumerRecord<byte[], byte[]>> records = new ArrayList<>();
            await(() -> {
                consumer.poll(Duration.ofMillis(200)).forEach(records::add);
                return records.size() >= 5;
            });
            producer.beginTransaction();
            for (ConsumerRecord<byte[], byte[]> each : records) {
                producer.send(new ProducerRecord<>(output, each.value()));
            }
            long next = records.get(records.size() - 1).offset() + 1;
            producer.sendOffsetsToTransaction(
                Map.of(new TopicPartition(input, 0), new OffsetAndMetadata(next)), consumer.groupMetadata());
            if (commit) {
                producer.commitTransaction();
            } else {
                producer.abortTransaction();
            }
        }
    }

    static void epochs() throws Exception {
        String topic = topic(), id = name("tx");
        try (KafkaProducer<byte[], byte[]> producer = producer(id, 60_000)) {
            int before = transaction(id).producerEpoch();
            for (int i = 0; i < 20; i++) {
                producer.beginTransaction();
                send(producer, topic, "a" + i);
                send(producer, topic, "b" + i);
                producer.commitTransaction();
            }
            int raised = transaction(id).producerEpoch() - before;
            boolean isSecond = !org.apache.kafka.common.utils.AppInfoParser.getVersion().startsWith("3.");
            if (raised != (isSecond ? 20 : 0)) {
                throw new AssertionError("twenty transactions raised the epoch by " + raised);
            }
        }
        String[] expected = new String[40];
        for (int i = 0; i < 20; i++) {
            expected[i] = "a" + i;
            expected[20 + i] = "b" + i;
        }
        Arrays.sort(expected);
        expect(topic, "read_committed", expected);
    }

    static void timeout() throws Exception {
        String topic = topic(), id = name("tx");
        KafkaProducer<byte[], byte[]> producer = producer(id, 1_000);
        try {
            producer.beginTransaction();
            send(producer, topic, "late");
            producer.flush();
            await(() -> transaction(id).state().toString().equals("CompleteAbort"));
            try {
                producer.commitTransaction();
                throw new AssertionError("a transaction was committed that had run out of time");
            } catch (KafkaException refused) {
                // The client says in many ways that it cannot be committed.
            }
        } finally {
            producer.close(Duration.ZERO);
        }
        try (KafkaProducer<byte[], byte[]> next = producer(id, 60_000)) {
            next.beginTransaction();
            send(next, topic, "next");
            next.commitTransaction();
        }
        expect(topic, "read_committed", "next");
    }

    static void fenceByAdmin() throws Exception {
        String topic = topic(), id = name("tx");
        KafkaProducer<byte[], byte[]> producer = producer(id, 60_000);
        try {
            producer.beginTransaction();
            send(producer, topic, "fenced");
            producer.flush();
            admin.fenceProducers(List.of(id)).all().get();
            try {
                producer.commitTransaction();
                throw new AssertionError("the producer was not fenced");
            } catch (KafkaException refused) {
                // as it should be
            }
        } finally {
            producer.close(Duration.ZERO);
        }
        expect(topic, "read_committed");
    }

    // -- what the checks use -----------------------------------------------------------------------------------

    static TransactionDescription transaction(String id) throws Exception {
        return admin.describeTransactions(List.of(id)).description(id).get();
    }

    static KafkaProducer<byte[], byte[]> producer(String id, int timeoutMs) {
        Map<String, Object> settings = new HashMap<>();
        settings.put("transactional.id", id);
        settings.put("transaction.timeout.ms", String.valueOf(timeoutMs));
        if (timeoutMs < 10_000) {
            settings.put("delivery.timeout.ms", String.valueOf(timeoutMs));
            settings.put("request.timeout.ms", String.valueOf(timeoutMs / 2));
        }
        KafkaProducer<byte[], byte[]> producer = producer(settings);
        producer.initTransactions();
        return producer;
    }

    static void send(KafkaProducer<byte[], byte[]> producer, String topic, String text) {
        int partition = Math.floorMod(text.hashCode(), PARTITIONS);
        producer.send(new ProducerRecord<>(topic, partition, null, bytes(text)));
    }

    /** A commit is answered before readers see it, so they may have to look again. */
    static void expect(String topic, String isolation, String... expected) throws Exception {
        long end = System.currentTimeMillis() + DEADLINE_MS;
        List<String> found = read(topic, isolation);
        while (found.size() < expected.length && System.currentTimeMillis() < end) {
            Thread.sleep(20);
            found = read(topic, isolation);
        }
        if (!found.equals(List.of(expected))) {
            throw new AssertionError(isolation + " finds " + found);
        }
    }

    /** What a reader finds in the whole topic, sorted. */
    static List<String> read(String topic, String isolation) throws Exception {
        List<String> found = new ArrayList<>();
        try (KafkaConsumer<byte[], byte[]> consumer = consumer(reading(isolation))) {
            List<TopicPartition> partitions = new ArrayList<>();
            for (int i = 0; i < PARTITIONS; i++) {
                partitions.add(new TopicPartition(topic, i));
            }
            consumer.assign(partitions);
            Map<TopicPartition, Long> ends = new HashMap<>(consumer.endOffsets(partitions));
            consumer.seekToBeginning(partitions);
            await(() -> {
                for (ConsumerRecord<byte[], byte[]> each : consumer.poll(Duration.ofMillis(100))) {
                    found.add(text(each.value()));
                }
                return partitions.stream().allMatch(each -> consumer.position(each) >= ends.get(each));
            });
        }
        Collections.sort(found);
        return found;
    }

    static String topic() throws Exception {
        return create(PARTITIONS, Map.of());
    }

    static Map<String, String> reading(String isolation) {
        return Map.of("auto.offset.reset", "earliest", "isolation.level", isolation);
    }
}
