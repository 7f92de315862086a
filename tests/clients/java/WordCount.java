// A Kafka Streams application that counts words exactly once: a repartition topic, a state store with its changelog, and
// an output record for each input record, with the count of its word so far.
//
// Run as `WordCount BOOTSTRAP APPLICATION INPUT OUTPUT STATE_FOLDER`, until it is killed.

import java.util.Properties;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.errors.StreamsUncaughtExceptionHandler.StreamThreadExceptionResponse;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.Produced;

public class WordCount {
    public static void main(String[] args) throws Exception {
        StreamsBuilder builder = new StreamsBuilder();
        builder.stream(args[2], Consumed.with(Serdes.String(), Serdes.String()))
            .groupBy((key, word) -> word, Grouped.with("by-word", Serdes.String(), Serdes.String()))
            .count(Materialized.as("counts"))
            .toStream()
            .mapValues(String::valueOf)
            .to(args[3], Produced.with(Serdes.String(), Serdes.String()));
        KafkaStreams streams = new KafkaStreams(builder.build(), settings(args[0], args[1], args[4]));
        streams.setUncaughtExceptionHandler(problem -> {
            System.err.println("replaced a thread after " + problem);
            return StreamThreadExceptionResponse.REPLACE_THREAD;
        });
        streams.start();
        Thread.currentThread().join();
    }

    static Properties settings(String bootstrap, String application, String folder) {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", bootstrap);
        settings.put("application.id", application);
        settings.put("state.dir", folder);
        settings.put("processing.guarantee", "exactly_once_v2");
        settings.put("commit.interval.ms", "100");
        settings.put("statestore.cache.max.bytes", "0");  // every update of a count goes to the output
        settings.put("num.stream.threads", "1");
        settings.put("consumer.auto.offset.reset", "earliest");
        settings.put("consumer.session.timeout.ms", "6000");  // a killed instance is missed soon
        settings.put("consumer.heartbeat.interval.ms", "500");
        settings.put("producer.transaction.timeout.ms", "10000");
        return settings;
    }
}
