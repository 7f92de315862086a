"""The options of the source and the sink: what is understood, what is refused and in which words."""

from __future__ import annotations

import pickle

import pytest

from ottla.pipeline.topics.options import Bound, OptionError, SinkOptions, SourceOptions

LEAST = {"kafka.bootstrap.servers": "127.0.0.1:9092", "subscribe": "clicks"}


def parse(**options: str | None) -> SourceOptions:
    """`kafka_group_id` stands for kafka.group.id; None takes an option away."""
    given = dict(LEAST)
    for name, value in options.items():
        key = name.replace("_", ".")
        given.pop(key, None)
        if value is not None:
            given[key] = value
    return SourceOptions.parse(given)


def test_defaults_are_those_of_sparks_source_but_for_the_isolation_level() -> None:
    options = parse()
    assert options.starting is None and options.ending is None
    assert options.fail_on_data_loss and not options.include_headers
    assert options.max_trigger_delay == 15 * 60
    assert options.read_committed
    assert options.notices == ()


def test_names_of_options_may_be_written_in_any_case() -> None:
    options = SourceOptions.parse(
        {
            "KAFKA.Bootstrap.Servers": "a:1",
            "SUBSCRIBE": "x",
            "startingoffsets": "EARLIEST",
            "MINPARTITIONS": "3",
        }
    )
    assert options.starting == Bound("earliest", "startingOffsets")
    assert options.min_partitions == 3


def test_options_travel_to_workers() -> None:
    options = parse(startingOffsets='{"clicks":{"0":1}}')
    assert pickle.loads(pickle.dumps(options)) == options


def test_the_three_ways_to_choose_partitions() -> None:
    assert parse(subscribe=" a, b,,a ").subscription.topics == ("a", "b")
    assert parse(subscribe=None, subscribePattern="a.*").subscription.pattern == "a.*"
    chosen = parse(subscribe=None, assign='{"b":[2,0],"a":[1]}').subscription
    assert chosen.places == (("a", 1), ("b", 0), ("b", 2))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"subscribe": None}, "one of them is needed"),
        ({"subscribePattern": "x"}, "only one of them can be given"),
        ({"subscribe": " , "}, "names no topic"),
        ({"subscribe": None, "subscribePattern": " "}, "is empty"),
        ({"subscribe": None, "subscribePattern": "a["}, "no regular expression"),
        ({"subscribe": None, "assign": "a"}, "JSON is wanted"),
        ({"subscribe": None, "assign": '{"a":["x"]}'}, "is the form"),
        ({"subscribe": None, "assign": "{}"}, "names no partition"),
        ({"kafka_bootstrap_servers": None}, "kafka.bootstrap.servers has to say"),
        ({"kafka_bootstrap_servers": "a:b"}, "the port is not a number"),
        ({"startingOffsets": "now"}, "earliest, latest, group, or"),
        ({"startingOffsets": '{"a":{"0":-3}}'}, "-1 for latest and -2 for earliest"),
        ({"startingOffsets": '{"a":{"x":1}}'}, "is the form"),
        ({"startingOffsets": '{"a":[1]}'}, "is the form"),
        ({"startingOffsets": '{"a":{"0":true}}'}, "is the form"),
        ({"startingTimestamp": "yesterday"}, "whole number"),
        ({"startingOffsetsByTimestamp": '{"a":{"0":-5}}'}, "times in milliseconds"),
        ({"startingOffsetsByTimestampStrategy": "first"}, "error or latest"),
        ({"startingOffsets": "group"}, "kafka.group.id has to say which"),
        ({"startingOffsets": "group,sometimes", "kafka_group_id": "g"}, "group,earliest or group,latest"),
        ({"failOnDataLoss": "no"}, "true or false"),
        ({"minPartitions": "0"}, "at least 1"),
        ({"maxOffsetsPerTrigger": "many"}, "whole number"),
        ({"minOffsetsPerTrigger": "9", "maxOffsetsPerTrigger": "3"}, "is higher than"),
        ({"maxTriggerDelay": "soon"}, "500ms, 30s or 15m"),
        ({"maxBytesPerTrigger": "much"}, "64m"),
        ({"kafka_isolation_level": "none"}, "read_committed or read_uncommitted"),
        ({"kafka_auto_offset_reset": "latest"}, "startingOffsets"),
        ({"kafka_enable_auto_commit": "true"}, "checkpoint"),
        ({"kafka_key_deserializer": "X"}, "come as bytes"),
        ({"kafka_security_protocol": "SASL_SSL"}, "not spoken yet"),
        ({"kafka_sasl_mechanism": "PLAIN"}, "not spoken yet"),
        ({"kafka_ssl_truststore_location": "/x"}, "not spoken yet"),
    ],
)
def test_unsupported_options_are_refused_with_a_clear_message(options: dict[str, str], words: str) -> None:
    with pytest.raises(OptionError) as refusal:
        parse(**options)
    assert words in str(refusal.value)


def test_a_plaintext_listener_may_be_named_as_such() -> None:
    assert parse(kafka_security_protocol="plaintext").notices == ()


def test_settings_without_effect_are_named_once_and_misspelt_options_get_a_hint() -> None:
    given = {
        **LEAST,
        "kafka.session.timeout.ms": "1",
        "kafka.max.poll.records": "1",
        "startingOffset": "earliest",
    }
    first, second = SourceOptions.parse(given).notices
    assert first == "without effect on this source: kafka.max.poll.records, kafka.session.timeout.ms"
    assert "did you mean startingOffsets?" in second


def test_options_that_there_are_get_no_notice_also_when_others_win_over_them() -> None:
    numbers = [
        "startingTimestamp",
        "endingTimestamp",
        "minPartitions",
        "maxRecordsPerPartition",
        "maxOffsetsPerTrigger",
        "minOffsetsPerTrigger",
        "maxTriggerDelay",
        "maxBytesPerTrigger",
        "kafkaConsumer.pollTimeoutMs",
        "fetchOffset.numRetries",
        "fetchOffset.retryIntervalMs",
        "partition.metadata.cache.ttl.ms",
        "kafka.metadata.max.age.ms",
        "kafka.request.timeout.ms",
        "kafka.default.api.timeout.ms",
        "kafka.socket.connection.setup.timeout.ms",
        "kafka.fetch.max.wait.ms",
        "kafka.max.partition.fetch.bytes",
    ]
    flags = ["failOnDataLoss", "includeHeaders", "commitOffsets", "kafka.check.crcs"]
    texts = ["groupIdPrefix", "offsetsFile", "kafka.client.id", "kafka.group.id"]
    given = {**dict.fromkeys(numbers, "5"), **dict.fromkeys(flags, "true"), **dict.fromkeys(texts, "x")}
    for side in ("starting", "ending"):
        given |= {f"{side}Offsets": "latest", f"{side}OffsetsByTimestamp": '{"clicks":{"0":5}}'}
    given |= {"startingOffsetsByTimestampStrategy": "latest", "kafka.isolation.level": "read_committed"}
    assert SourceOptions.parse(LEAST | given).notices == ()


def test_times_win_over_offsets_and_one_time_for_all_wins_over_times_by_partition() -> None:
    both = {"startingOffsets": "earliest", "startingOffsetsByTimestamp": '{"clicks":{"0":5}}'}
    assert parse(**both).starting == Bound(
        "timestamps", "startingOffsetsByTimestamp", by_place=((("clicks", 0), 5),)
    )
    assert parse(**both, startingTimestamp="7").starting == Bound(
        "timestamp", "startingTimestamp", timestamp=7
    )


def test_starting_from_a_group_falls_back_to_earliest_or_the_given_position() -> None:
    for text, fallback in [
        ("group", "earliest"),
        ("group,earliest", "earliest"),
        ("Group, latest", "latest"),
    ]:
        starting = parse(startingOffsets=text, kafka_group_id="g").starting
        assert starting == Bound("group", "startingOffsets", otherwise=fallback)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"startingOffsets": "latest"}, "cannot be latest"),
        ({"startingOffsets": '{"clicks":{"0":-1}}'}, "cannot be latest for partition 0 of topic clicks"),
        ({"startingOffsets": "group,latest", "kafka_group_id": "g"}, "cannot be latest"),
        ({"endingOffsets": "earliest"}, "cannot be earliest"),
        ({"endingOffsets": '{"clicks":{"0":-2}}'}, "cannot be earliest for partition 0 of topic clicks"),
        (
            {"startingOffsets": '{"clicks":{"0":9}}', "endingOffsets": '{"clicks":{"0":3}}'},
            "past endingOffsets 3",
        ),
        (
            {"startingOffsets": '{"clicks":{"0":9}}', "endingOffsets": '{"clicks":{"1":30}}'},
            "do not name the same partitions",
        ),
        (
            {
                "startingOffsetsByTimestamp": '{"clicks":{"0":9}}',
                "endingOffsetsByTimestamp": '{"clicks":{"0":3}}',
            },
            "past endingOffsetsByTimestamp 3",
        ),
    ],
)
def test_a_batch_refuses_ends_that_make_no_sense(options: dict[str, str], words: str) -> None:
    with pytest.raises(OptionError, match=words):
        parse(**options).for_batch()


@pytest.mark.parametrize("name", ["endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp"])
def test_a_stream_has_no_end(name: str) -> None:
    value = {"endingOffsets": "latest", "endingTimestamp": "5"}.get(name, '{"clicks":{"0":5}}')
    with pytest.raises(OptionError, match=f"{name} cannot be given for a stream"):
        parse(**{name: value}).for_stream()


def test_the_derived_group_is_the_same_at_every_start() -> None:
    assert parse().group == "ottla-spark.clicks"
    assert parse(groupIdPrefix="shop").group == "shop.clicks"
    assert parse(kafka_group_id="mine", groupIdPrefix="shop").group == "mine"
    by_pattern = parse(subscribe=None, subscribePattern="clicks.*")
    assert by_pattern.group == parse(subscribe=None, subscribePattern="clicks.*").group != parse().group


def test_times_and_sizes_take_units() -> None:
    options = parse(maxTriggerDelay="2m", maxBytesPerTrigger="3MB", kafka_request_timeout_ms="1500")
    assert options.max_trigger_delay == 120
    assert options.max_bytes_per_trigger == 3 << 20
    assert options.request_timeout == 1.5


def test_the_sink_takes_settings_of_producers() -> None:
    options = SinkOptions.parse(
        {
            "kafka.bootstrap.servers": "a:1",
            "topic": "out",
            "kafka.acks": "1",
            "kafka.compression.type": "zstd",
            "kafka.linger.ms": "5",
            "includeHeaders": "true",
            "kafka.buffer.memory": "1",
        }
    )
    assert (options.topic, options.acks, options.compression, options.idempotent) == ("out", 1, "zstd", False)
    assert options.notices == ("without effect on this sink: kafka.buffer.memory",)


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("kafka.acks", "2", "all, 1 or 0"),
        ("kafka.compression.type", "rar", "gzip, snappy"),
        ("kafka.value.serializer", "X", "string or binary"),
        ("kafka.transactional.id", "x", "at least once"),
    ],
)
def test_the_sink_refuses_what_it_cannot_do(name: str, value: str, words: str) -> None:
    with pytest.raises(OptionError, match=words):
        SinkOptions.parse({"kafka.bootstrap.servers": "a:1", name: value})
