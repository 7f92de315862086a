// What a broker owes the Java client, checked with the client's public interface alone.
//
// What is here consumes by assignment; groups are in Groups.java. How it is run is in Checks.java.

import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.concurrent.Future;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.Config;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.CreateTopicsOptions;
import org.apache.kafka.clients.admin.DescribeClusterResult;
import org.apache.kafka.clients.admin.ListOffsetsResult.ListOffsetsResultInfo;
import org.apache.kafka.clients.admin.NewPartitions;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.clients.admin.ProducerState;
import org.apache.kafka.clients.admin.RecordsToDelete;
import org.apache.kafka.clients.admin.TopicDescription;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndTimestamp;
import org.apache.kafka.clients.consumer.OffsetOutOfRangeException;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.TopicCollection;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.common.acl.AclBindingFilter;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.errors.InvalidConfigurationException;
import org.apache.kafka.common.errors.InvalidPartitionsException;
import org.apache.kafka.common.errors.InvalidReplicationFactorException;
import org.apache.kafka.common.errors.InvalidTopicException;
import org.apache.kafka.common.errors.RecordTooLargeException;
import org.apache.kafka.common.errors.SecurityDisabledException;
import org.apache.kafka.common.errors.TopicExistsException;
import org.apache.kafka.common.errors.UnknownTopicOrPartitionException;
import org.apache.kafka.common.header.Header;

public class Conformance extends Checks {
    public static void main(String[] args) throws Exception {
        begin(args);
        check("create and describe a topic", Conformance::createAndDescribe);
        check("refuse bad topics", Conformance::refuseBadTopics);
        check("add partitions", Conformance::addPartitions);
        check("describe and alter configs", Conformance::configs);
        check("describe the cluster", Conformance::cluster);
        check("describe log dirs", Conformance::logDirs);
        check("describe acls", Conformance::acls);
        check("delete a topic", Conformance::deleteTopic);
        for (String codec : List.of("none", "gzip", "snappy", "lz4", "zstd")) {
            for (String acks : List.of("0", "1", "all")) {
                check("produce " + codec + " acks " + acks, () -> produceAndConsume(codec, acks));
            }
        }
        check("produce idempotently", Conformance::idempotent);
        check("every size of record", Conformance::sizes);
        check("a record too large", Conformance::tooLarge);
        check("headers, nulls and timestamps", Conformance::shapes);
        check("consume from every kind of offset", Conformance::positions);
        check("list offsets", Conformance::listOffsets);
        check("delete records", Conformance::deleteRecords);
        check("describe producers", Conformance::describeProducers);
        check("wait for a record", Conformance::waitForRecord);
        check("broker timestamps", Conformance::brokerTimestamps);
        Groups.check();
        end();
    }

    // -- checks ------------------------------------------------------------------------------------------------

    static void createAndDescribe() throws Exception {
        String topic = create(3, Map.of("retention.ms", "123456"));
        TopicDescription description = described(topic);
        equal(3, description.partitions().size());
        equal(false, description.isInternal());
        equal(brokers, description.partitions().get(0).replicas().size());
        equal(brokers, description.partitions().get(0).isr().size());
        equal(true, admin.listTopics().names().get().contains(topic));
        Map<Uuid, TopicDescription> byId =
            admin.describeTopics(TopicCollection.ofTopicIds(List.of(description.topicId()))).allTopicIds().get();
        equal(topic, byId.get(description.topicId()).name());
        NewTopic assigned = new NewTopic(name("t"), Map.of(0, List.of(1), 1, List.of(1)));
        admin.createTopics(List.of(assigned)).all().get();
        await(() -> described(assigned.name()).partitions().size() == 2);
        NewTopic unmade = new NewTopic(name("t"), Optional.empty(), Optional.empty());
        admin.createTopics(List.of(unmade), new CreateTopicsOptions().validateOnly(true)).all().get();
        equal(false, admin.listTopics().names().get().contains(unmade.name()));
        NewTopic defaults = new NewTopic(name("t"), Optional.empty(), Optional.empty());
        Config config = admin.createTopics(List.of(defaults)).config(defaults.name()).get();
        equal("producer", config.get("compression.type").value());
        equal(ConfigEntry.ConfigSource.DEFAULT_CONFIG, config.get("compression.type").source());
    }

    static void refuseBadTopics() throws Exception {
        String topic = create(1, Map.of());
        fails(TopicExistsException.class, admin.createTopics(List.of(new NewTopic(topic, 1, (short) 1))).all());
        fails(InvalidTopicException.class, admin.createTopics(List.of(new NewTopic("no/good", 1, (short) 1))).all());
        fails(InvalidPartitionsException.class, admin.createTopics(List.of(new NewTopic(name("t"), 0, (short) 1))).all());
        fails(InvalidReplicationFactorException.class,
            admin.createTopics(List.of(new NewTopic(name("t"), 1, (short) 5))).all());
        fails(InvalidConfigurationException.class, admin.createTopics(List.of(
            new NewTopic(name("t"), 1, (short) 1).configs(Map.of("retention.ms", "soon")))).all());
        fails(UnknownTopicOrPartitionException.class, admin.describeTopics(List.of(name("t"))).allTopicNames());
    }

    static void addPartitions() throws Exception {
        String topic = create(1, Map.of());
        admin.createPartitions(Map.of(topic, NewPartitions.increaseTo(4))).all().get();
        await(() -> described(topic).partitions().size() == 4);
        fails(InvalidPartitionsException.class,
            admin.createPartitions(Map.of(topic, NewPartitions.increaseTo(2))).all());
        try (KafkaProducer<byte[], byte[]> producer = producer(Map.of())) {
            equal(3, producer.send(new ProducerRecord<>(topic, 3, bytes("k"), bytes("v"))).get().partition());
        }
    }

    static void configs() throws Exception {
        String topic = create(1, Map.of("retention.ms", "123456"));
        ConfigResource resource = new ConfigResource(ConfigResource.Type.TOPIC, topic);
        Config before = admin.describeConfigs(List.of(resource)).all().get().get(resource);
        equal("123456", before.get("retention.ms").value());
        equal(ConfigEntry.ConfigSource.DYNAMIC_TOPIC_CONFIG, before.get("retention.ms").source());
        equal(ConfigEntry.ConfigType.LONG, before.get("retention.ms").type());
        List<AlterConfigOp> changes = List.of(
            new AlterConfigOp(new ConfigEntry("max.message.bytes", "2000"), AlterConfigOp.OpType.SET),
            new AlterConfigOp(new ConfigEntry("retention.ms", ""), AlterConfigOp.OpType.DELETE),
            new AlterConfigOp(new ConfigEntry("cleanup.policy", "compact"), AlterConfigOp.OpType.APPEND));
        admin.incrementalAlterConfigs(Map.of(resource, changes)).all().get();
        await(() -> {
            Config now = admin.describeConfigs(List.of(resource)).all().get().get(resource);
            return now.get("max.message.bytes").value().equals("2000")
                && now.get("retention.ms").value().equals("604800000")
                && now.get("cleanup.policy").value().equals("delete,compact");
        });
        fails(InvalidConfigurationException.class, admin.incrementalAlterConfigs(Map.of(resource, List.of(
            new AlterConfigOp(new ConfigEntry("segment.bytes", "few"), AlterConfigOp.OpType.SET)))).all());
        ConfigResource broker = new ConfigResource(ConfigResource.Type.BROKER, "1");
        Config brokerConfig = admin.describeConfigs(List.of(broker)).all().get().get(broker);
        equal("1048588", brokerConfig.get("message.max.bytes").value());
    }

    static void cluster() throws Exception {
        DescribeClusterResult cluster = admin.describeCluster();
        equal(brokers, cluster.nodes().get().size());
        equal(true, cluster.nodes().get().contains(cluster.controller().get()));
        equal(false, cluster.clusterId().get().isEmpty());
    }

    static void logDirs() throws Exception {
        String topic = create(1, Map.of());
        send(topic, 3);
        TopicPartition partition = new TopicPartition(topic, 0);
        // The first broker may be a follower, which gets the records a moment later.
        await(() -> admin.describeLogDirs(List.of(1)).allDescriptions().get().get(1).values().stream().anyMatch(dir ->
            dir.replicaInfos().containsKey(partition) && dir.replicaInfos().get(partition).size() > 0));
    }

    static void acls() throws Exception {
        fails(SecurityDisabledException.class, admin.describeAcls(AclBindingFilter.ANY).values());
    }

    static void deleteTopic() throws Exception {
        String topic = create(1, Map.of());
        send(topic, 1);
        admin.deleteTopics(List.of(topic)).all().get();
        await(() -> !admin.listTopics().names().get().contains(topic));
        fails(UnknownTopicOrPartitionException.class, admin.deleteTopics(List.of(topic)).all());
        String other = create(1, Map.of());
        admin.deleteTopics(TopicCollection.ofTopicIds(List.of(described(other).topicId()))).all().get();
        await(() -> !admin.listTopics().names().get().contains(other));
    }

    static void produceAndConsume(String codec, String acks) throws Exception {
        String topic = create(1, Map.of());
        List<Future<RecordMetadata>> sent = new ArrayList<>();
        Map<String, Object> settings = new HashMap<>(Map.of("compression.type", codec, "acks", acks));
        settings.put("enable.idempotence", acks.equals("all"));
        try (KafkaProducer<byte[], byte[]> producer = producer(settings)) {
            for (int i = 0; i < 50; i++) {
                sent.add(producer.send(new ProducerRecord<>(topic, bytes("key-" + i), bytes("value-".repeat(20) + i))));
            }
            producer.flush();
            for (int i = 0; i < sent.size(); i++) {
                equal(acks.equals("0") ? -1L : i, sent.get(i).get().offset());
            }
        }
        List<ConsumerRecord<byte[], byte[]>> records = consume(topic, 0, 50);
        for (int i = 0; i < 50; i++) {
            equal((long) i, records.get(i).offset());
            equal("key-" + i, text(records.get(i).key()));
            equal("value-".repeat(20) + i, text(records.get(i).value()));
        }
    }

    static void idempotent() throws Exception {
        String topic = create(1, Map.of());
        Map<String, Object> settings = Map.of(
            "enable.idempotence", true, "acks", "all", "max.in.flight.requests.per.connection", 5, "batch.size", 200);
        try (KafkaProducer<byte[], byte[]> producer = producer(settings)) {
            for (int i = 0; i < 1000; i++) {
                producer.send(new ProducerRecord<>(topic, null, bytes("" + i)));
            }
        }
        List<ConsumerRecord<byte[], byte[]>> records = consume(topic, 0, 1000);
        for (int i = 0; i < 1000; i++) {
            equal("" + i, text(records.get(i).value()));
        }
        equal(1000L, end(topic));
    }

    static void sizes() throws Exception {
        String topic = create(1, Map.of());
        int[] sizes = {0, 1, 2, 100, 1_000, 10_000, 100_000, 1_000_000};
        try (KafkaProducer<byte[], byte[]> producer = producer(Map.of("max.request.size", 3_000_000))) {
            for (int size : sizes) {
                producer.send(new ProducerRecord<>(topic, new byte[size])).get();
            }
        }
        List<ConsumerRecord<byte[], byte[]>> records = consume(topic, 0, sizes.length);
        for (int i = 0; i < sizes.length; i++) {
            equal(sizes[i], records.get(i).value().length);
        }
    }

    static void tooLarge() throws Exception {
        String topic = create(1, Map.of());
        try (KafkaProducer<byte[], byte[]> producer = producer(Map.of("max.request.size", 5_000_000))) {
            fails(RecordTooLargeException.class, producer.send(new ProducerRecord<>(topic, new byte[2_000_000])));
        }
        equal(0L, end(topic));
    }

    static void shapes() throws Exception {
        String topic = create(1, Map.of());
        long time = System.currentTimeMillis() - 3_600_000;
        ProducerRecord<byte[], byte[]> rich = new ProducerRecord<>(topic, 0, time, bytes("k"), bytes("v"));
        rich.headers().add("one", bytes("1")).add("one", bytes("2")).add("empty", new byte[0]).add("none", null);
        try (KafkaProducer<byte[], byte[]> producer = producer(Map.of())) {
            equal(time, producer.send(rich).get().timestamp());
            producer.send(new ProducerRecord<>(topic, 0, time + 1, null, bytes("no key"))).get();
            producer.send(new ProducerRecord<>(topic, 0, time + 2, bytes("no value"), (byte[]) null)).get();
            producer.send(new ProducerRecord<>(topic, 0, time + 3, (byte[]) null, (byte[]) null)).get();
            producer.send(new ProducerRecord<>(topic, 0, time + 4, new byte[0], new byte[0])).get();
        }
        List<ConsumerRecord<byte[], byte[]>> records = consume(topic, 0, 5);
        Header[] headers = records.get(0).headers().toArray();
        equal(List.of("one", "one", "empty", "none"), Arrays.stream(headers).map(Header::key).toList());
        equal("2", text(headers[1].value()));
        equal(0, headers[2].value().length);
        equal(null, headers[3].value());
        equal(time, records.get(0).timestamp());
        equal(null, records.get(1).key());
        equal(null, records.get(2).value());
        equal(null, records.get(3).key());
        equal(null, records.get(3).value());
        equal(0, records.get(4).key().length);
        equal(0, records.get(4).value().length);
    }

    static void positions() throws Exception {
        String topic = create(1, Map.of());
        long time = System.currentTimeMillis() - 3_600_000;
        try (KafkaProducer<byte[], byte[]> producer = producer(Map.of("batch.size", 300))) {
            for (int i = 0; i < 100; i++) {
                producer.send(new ProducerRecord<>(topic, 0, time + i * 10, null, bytes("" + i)));
            }
        }
        TopicPartition partition = new TopicPartition(topic, 0);
        try (KafkaConsumer<byte[], byte[]> consumer = consumer(Map.of())) {
            consumer.assign(List.of(partition));
            consumer.seekToBeginning(List.of(partition));
            equal(0L, poll(consumer, 1).get(0).offset());
            consumer.seek(partition, 42);
            equal(42L, poll(consumer, 1).get(0).offset());
            consumer.seekToEnd(List.of(partition));
            equal(100L, consumer.position(partition));
            OffsetAndTimestamp found = consumer.offsetsForTimes(Map.of(partition, time + 505)).get(partition);
            equal(51L, found.offset());
            equal(time + 510, found.timestamp());
            equal(null, consumer.offsetsForTimes(Map.of(partition, time + 100_000)).get(partition));
            equal(0L, consumer.beginningOffsets(List.of(partition)).get(partition));
            equal(100L, consumer.endOffsets(List.of(partition)).get(partition));
            consumer.seek(partition, 1000);
            boolean refused = false;
            long deadline = System.currentTimeMillis() + DEADLINE_MS;
            while (!refused && System.currentTimeMillis() < deadline) {
                try {
                    consumer.poll(POLL);
                } catch (OffsetOutOfRangeException expected) {
                    refused = true;
                }
            }
            equal(true, refused);
        }
        try (KafkaConsumer<byte[], byte[]> committed = consumer(Map.of("isolation.level", "read_committed"))) {
            committed.assign(List.of(partition));
            committed.seekToBeginning(List.of(partition));
            equal(100, poll(committed, 100).size());
        }
    }

    static void listOffsets() throws Exception {
        String topic = create(1, Map.of());
        TopicPartition partition = new TopicPartition(topic, 0);
        equal(-1L, offset(partition, OffsetSpec.maxTimestamp()).offset());
        long time = System.currentTimeMillis() - 3_600_000;
        try (KafkaProducer<byte[], byte[]> producer = producer(Map.of())) {
            for (long late : new long[] {10, 50, 20}) {
                producer.send(new ProducerRecord<>(topic, 0, time + late, null, bytes("v"))).get();
            }
        }
        equal(0L, offset(partition, OffsetSpec.earliest()).offset());
        equal(3L, offset(partition, OffsetSpec.latest()).offset());
        equal(1L, offset(partition, OffsetSpec.maxTimestamp()).offset());
        equal(time + 50, offset(partition, OffsetSpec.maxTimestamp()).timestamp());
        equal(1L, offset(partition, OffsetSpec.forTimestamp(time + 15)).offset());
        equal(Optional.of(0), offset(partition, OffsetSpec.latest()).leaderEpoch());
    }

    static void deleteRecords() throws Exception {
        String topic = create(1, Map.of());
        send(topic, 10);
        TopicPartition partition = new TopicPartition(topic, 0);
        equal(4L, admin.deleteRecords(Map.of(partition, RecordsToDelete.beforeOffset(4)))
            .lowWatermarks().get(partition).get().lowWatermark());
        equal(4L, offset(partition, OffsetSpec.earliest()).offset());
        equal(4L, consume(topic, 4, 6).get(0).offset());
        fails(org.apache.kafka.common.errors.OffsetOutOfRangeException.class,
            admin.deleteRecords(Map.of(partition, RecordsToDelete.beforeOffset(99))).all());
    }

    static void describeProducers() throws Exception {
        String topic = create(1, Map.of());
        send(topic, 3);
        TopicPartition partition = new TopicPartition(topic, 0);
        List<ProducerState> states =
            admin.describeProducers(List.of(partition)).partitionResult(partition).get().activeProducers();
        equal(1, states.size());
        equal(2, states.get(0).lastSequence());
    }

    static void waitForRecord() throws Exception {
        String topic = create(1, Map.of());
        TopicPartition partition = new TopicPartition(topic, 0);
        try (KafkaConsumer<byte[], byte[]> consumer = consumer(Map.of("fetch.max.wait.ms", 4_000))) {
            consumer.assign(List.of(partition));
            consumer.seekToBeginning(List.of(partition));
            equal(true, consumer.poll(POLL).isEmpty());
            long began = System.currentTimeMillis();
            send(topic, 1);
            equal(1, poll(consumer, 1).size());
            equal(true, System.currentTimeMillis() - began < 3_000);
        }
    }

    static void brokerTimestamps() throws Exception {
        String topic = create(1, Map.of("message.timestamp.type", "LogAppendTime", "compression.type", "gzip"));
        long began = System.currentTimeMillis() - 1_000;
        try (KafkaProducer<byte[], byte[]> producer = producer(Map.of())) {
            ProducerRecord<byte[], byte[]> old = new ProducerRecord<>(topic, 0, 1_000L, null, bytes("v"));
            equal(true, producer.send(old).get().timestamp() >= began);
        }
        equal(true, consume(topic, 0, 1).get(0).timestamp() >= began);
    }

    // -- the client --------------------------------------------------------------------------------------------

    static List<ConsumerRecord<byte[], byte[]>> consume(String topic, long offset, int count) {
        TopicPartition partition = new TopicPartition(topic, 0);
        try (KafkaConsumer<byte[], byte[]> consumer = consumer(Map.of())) {
            consumer.assign(List.of(partition));
            consumer.seek(partition, offset);
            return poll(consumer, count);
        }
    }

    static long end(String topic) throws Exception {
        return offset(new TopicPartition(topic, 0), OffsetSpec.latest()).offset();
    }

    static ListOffsetsResultInfo offset(TopicPartition partition, OffsetSpec spec) throws Exception {
        return admin.listOffsets(Map.of(partition, spec)).partitionResult(partition).get();
    }
}
