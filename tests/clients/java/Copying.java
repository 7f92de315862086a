// Consume-transform-produce with the Java client: records and the offsets of a group in one transaction, while members
// of the group come and go. Every record is in the output once, whatever was aborted in between.

import java.time.Duration;
import java.util.ArrayList;
import java.util.Collections;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicReference;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.FencedInstanceIdException;
import org.apache.kafka.common.errors.OutOfOrderSequenceException;
import org.apache.kafka.common.errors.ProducerFencedException;

class Copying extends Checks {
    /** So many records are in the input that are not in the output yet, as long as members come and go. */
    static final int AHEAD = 200;

    /** The second member joins and leaves while the first one copies, a third one takes over. */
    static void withRebalances(String protocol) throws Exception {
        String input = create(Transactions.PARTITIONS, Map.of()), output = create(Transactions.PARTITIONS, Map.of());
        AtomicInteger copied = new AtomicInteger();
        List<String> expected;
        try (Feeder feeder = new Feeder(input, copied); Copier first = new Copier(protocol, input, output, copied)) {
            await(() -> first.copied.get() >= 50);
            try (Copier second = new Copier(protocol, input, output, copied)) {
                await(() -> second.copied.get() >= 20);
            }
            int before = first.copied.get();
            await(() -> first.copied.get() >= before + 50);
            try (Copier third = new Copier(protocol, input, output, copied)) {
                await(() -> third.copied.get() >= 20);
                first.close();
                feeder.close();
                expected = feeder.sent;
                await(() -> Transactions.read(output, "read_committed").size() >= feeder.sent.size());
            }
        }
        Collections.sort(expected);
        equal(expected, Transactions.read(output, "read_committed"));
    }

    /** Something on a thread of its own, until it is closed; what goes wrong there is thrown then. */
    abstract static class Worker implements AutoCloseable {
        protected volatile boolean over = false;
        private final AtomicReference<Exception> failure = new AtomicReference<>();
        private Thread thread;

        abstract void work() throws Exception;

        void start() {
            thread = new Thread(() -> {
                try {
                    work();
                } catch (Exception problem) {
                    failure.compareAndSet(null, problem);
                }
            });
            thread.start();
        }

        @Override
        public void close() throws Exception {
            over = true;
            thread.join();
            if (failure.get() != null) {
                throw failure.get();
            }
        }
    }

    static class Feeder extends Worker {
        final List<String> sent = new ArrayList<>();
        private final String input;
        private final AtomicInteger copied;

        Feeder(String input, AtomicInteger copied) {
            this.input = input;
            this.copied = copied;
            start();
        }

        @Override
        void work() throws Exception {
            try (KafkaProducer<byte[], byte[]> plain = producer(Map.of())) {
                while (!over) {
                    int number = sent.size();
                    await(() -> over || number < copied.get() + AHEAD);
                    plain.send(new ProducerRecord<>(input, number % Transactions.PARTITIONS, null, bytes("r" + number)));
                    sent.add("R" + number);
                }
            }
        }
    }

    /** A member of the group of the input topic that copies with a transactional producer of its own. */
    static class Copier extends Worker {
        final AtomicInteger copied = new AtomicInteger();
        private final AtomicInteger total;
        private final String protocol;
        private final String input;
        private final String output;

        Copier(String protocol, String input, String output, AtomicInteger total) {
            this.protocol = protocol;
            this.input = input;
            this.output = output;
            this.total = total;
            start();
        }

        @Override
        void work() {
            Map<String, Object> settings = new HashMap<>(Transactions.reading("read_committed"));
            settings.put("max.poll.records", "10");
            try (KafkaProducer<byte[], byte[]> producer = Transactions.producer(name("tx"), 60_000);
                 KafkaConsumer<byte[], byte[]> consumer = Groups.consumer(protocol, input, settings)) {
                consumer.subscribe(List.of(input));
                while (!over) {
                    ConsumerRecords<byte[], byte[]> records = consumer.poll(Duration.ofMillis(50));
                    if (!records.isEmpty()) {
                        copy(producer, consumer, records);
                    }
                }
            }
        }

        private void copy(
            KafkaProducer<byte[], byte[]> producer, KafkaConsumer<byte[], byte[]> consumer,
            ConsumerRecords<byte[], byte[]> records
        ) {
            try {
                Map<TopicPartition, OffsetAndMetadata> offsets = new HashMap<>();
                producer.beginTransaction();
                for (ConsumerRecord<byte[], byte[]> each : records) {
                    producer.send(new ProducerRecord<>(
                        output, each.partition(), null, bytes(text(each.value()).toUpperCase())));
                    offsets.put(new TopicPartition(each.topic(), each.partition()), new OffsetAndMetadata(each.offset() + 1));
                }
                producer.sendOffsetsToTransaction(offsets, consumer.groupMetadata());
                producer.commitTransaction();
                copied.addAndGet(records.count());
                total.addAndGet(records.count());
            } catch (ProducerFencedException | OutOfOrderSequenceException | FencedInstanceIdException fatal) {
                throw fatal;
            } catch (KafkaException abortable) {
                // The partitions have moved: whoever has them now reads these records again.
                producer.abortTransaction();
                Set<TopicPartition> owned = consumer.assignment();
                Map<TopicPartition, OffsetAndMetadata> committed = consumer.committed(owned);
                for (TopicPartition partition : owned) {
                    consumer.seek(partition, committed.get(partition) == null ? 0 : committed.get(partition).offset());
                }
            }
        }
    }
}
