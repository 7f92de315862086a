"""Where Ottla answers otherwise than Apache Kafka 4.3.1 on purpose. This is the only such list.

An entry says in which scenarios, which answers and which fields, and why. A scenario's test fails on a
difference that is not here, and on an entry that names the scenario but no longer occurs in it. Patterns are
globs in which `[0]` is an index and `*` is anything. An entry for many scenarios names one of them as its
witness, where its absence would be noticed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any


def _whatever(theirs: Any, ours: Any) -> bool:
    return True


@dataclass(frozen=True)
class Difference:
    """One wanted difference. `when` may look at the two values; `theirs` is Kafka's."""

    reason: str
    scenarios: Sequence[str]
    answers: Sequence[str] = ("*",)
    paths: Sequence[str] = ("*",)
    when: Callable[[Any, Any], bool] = _whatever
    witness: str | None = None

    def covers(self, scenario: str, answer: str, path: str, theirs: Any, ours: Any) -> bool:
        return (
            _any(self.scenarios, scenario)
            and _any(self.answers, answer)
            and _any(self.paths, path)
            and self.when(theirs, ours)
        )

    def must_occur_in(self, scenario: str) -> bool:
        """Whether a run of this scenario without an instance of this entry means that the entry is "
        "out of date."""
        return scenario == self.witness if self.witness else scenario in self.scenarios


def _any(patterns: Sequence[str], text: str) -> bool:
    return any(fnmatchcase(text, pattern.replace("[", "[[]")) for pattern in patterns)


def _we_say_more(theirs: Any, ours: Any) -> bool:
    return isinstance(ours, str) and bool(ours)


def _the_server_fails(theirs: Any, ours: Any) -> bool:
    return bool(theirs == _UNKNOWN_SERVER_ERROR and ours != _UNKNOWN_SERVER_ERROR)


_UNKNOWN_SERVER_ERROR = -1

_WORDING = Difference(
    "Messages for people are in our own words, and there are more of them: Kafka leaves many errors without.",
    scenarios=["*"],
    paths=["*error_message"],
    when=_we_say_more,
    witness="produce.a_wrong_crc",
)

_SERVER_ERROR = (
    "Kafka's handler fails on this and answers UNKNOWN_SERVER_ERROR, on which an idempotent producer "
    "may resend "
    "what was written. We never answer it: bad input gets the code that says what is wrong with it."
)
_SERVER_ERRORS = (
    Difference(_SERVER_ERROR, ["configs.changing_a_topic"], ["an unknown operation", "a negative operation"]),
    Difference(_SERVER_ERROR, ["topics.adding_partitions"], ["to very many"], when=_the_server_fails),
    Difference(_SERVER_ERROR, ["metadata.topics_by_id"], ["neither"], when=_the_server_fails),
    Difference(_SERVER_ERROR, ["metadata.describing_topic_partitions"], ["an empty name"]),
    Difference(_SERVER_ERROR, ["produce.batches_with_a_wrong_length"], ["length +2147483560"]),
    Difference(
        _SERVER_ERROR, ["produce.header_fields_out_of_the_ordinary"], ["compression 5", "compression 7"]
    ),
)

_ISOLATION = (
    "An isolation level that does not exist reads what is committed and what is not; Kafka's handler "
    "fails on it."
)
_FETCH_LIMITS = "A negative limit of a fetch is a limit of nothing, above which one batch is still sent."
_LENIENT_READS = (
    Difference(_ISOLATION, ["fetch.both_isolation_levels"], ["level 2*", "level -1*"]),
    Difference(_ISOLATION, ["offsets.isolation_levels_and_epochs"], ["level 2*"]),
    Difference(_FETCH_LIMITS, ["fetch.how_much_is_sent"], ["negative*"]),
    Difference(
        "Followers fetch on the listener for other brokers only; an open Kafka takes them on any.",
        ["fetch.as_a_replica"],
        ["replica 5"],
        ["*error_code", "*current_leader.*"],
    ),
    Difference(
        "Any negative leader epoch means that the client knows none, in ListOffsets as in Fetch.",
        ["offsets.isolation_levels_and_epochs"],
        ["epoch -2"],
    ),
)

_NEVER_ANSWERED = "Kafka's handler dies of this request and the client waits in vain. We refuse it."
_ANSWERED = (
    Difference(_NEVER_ANSWERED, ["produce.nothing_to_produce"], ["null records"]),
    Difference(_NEVER_ANSWERED, ["configs.altering_what_is_not_there"], ["twice"]),
)

_NOT_OPENED = (
    "The broker does not open a batch: header, CRC and producer are checked, the records are the "
    "clients' affair. "
    "Kafka reads each record of each batch, which is what makes its produce path costly."
)
_OPENED = "Where we must open a batch, offsets that do not follow on each other are refused as well."
_RECORDS = (
    Difference(
        _NOT_OPENED,
        ["produce.records_that_do_not_fit"],
        [
            "a record *",
            "more headers *",
            "a negative *",
            "bytes behind *",
            "no bytes",
            "not records *",
            "the log",
        ],
    ),
    Difference(_NOT_OPENED, ["produce.counts_that_do_not_fit"], ["both say *", "the log"]),
    Difference(_NOT_OPENED, ["produce.compressed_batches_that_are_damaged"]),
    Difference(
        _NOT_OPENED,
        ["produce.header_fields_out_of_the_ordinary"],
        ["the log"],
        ["records[5].max_timestamp"],
    ),
    Difference(
        "A largest timestamp that can be true is believed. Kafka computes it from the records of each batch.",
        ["produce.times_that_the_header_does_not_tell"],
        ["higher*", "lower*"],
    ),
    Difference(
        "The bit of the delete horizon is compaction's; set by a client, whose tombstones would go too "
        "early, it is taken back.",
        ["produce.header_fields_out_of_the_ordinary"],
        ["the log"],
        ["records[3].attributes"],
    ),
    Difference(
        "A compacted topic takes only consecutive offset deltas, without which compaction would delete the "
        "wrong records. Kafka demands them of compressed batches alone, and its handler fails on those.",
        ["produce.offset_deltas_in_a_compacted_topic"],
    ),
    Difference(
        _OPENED,
        ["produce.records_that_do_not_fit_where_the_broker_must_open_them"],
        ["deltas *", "record attributes", "not records at all", "the end"],
    ),
    Difference(
        "A batch that claims the broker's timestamp type is refused as a whole, without a list of all "
        "its records.",
        ["produce.topics_stamped_by_the_broker"],
        ["stamped by the client"],
        ["*record_errors"],
    ),
)

_TWICE = (
    "A partition that is named more than once in a Produce request is refused. Kafka appends the last "
    "batch and answers with success, and the others are lost in silence."
)
_DUPLICATE_TIME = (
    "The answer to a duplicate is the answer to the first: without a time unless the broker stamps "
    "it. Kafka puts "
    "the batch's own time where the broker's belongs."
)
_PRODUCING = (
    Difference(_TWICE, ["produce.the_same_topic_and_partition_twice_in_one_request"]),
    Difference(
        _DUPLICATE_TIME,
        [
            "producers.sequences_in_order",
            "producers.the_window_of_five",
            "producers.sequences_wrap_around",
            "producers.idempotent_without_waiting_for_all",
            "producers.duplicates_after_records_were_deleted",
            "transactional_writes.writing_in_a_transaction",
            "transactional_writes.two_producers_in_one_request",
        ],
        paths=["*log_append_time_ms"],
    ),
)

_TOPICS = (
    Difference(
        "A topic that Metadata makes is there when Metadata answers; Kafka makes it later and says it "
        "is unknown.",
        ["metadata.topics_made_on_first_sight"],
        ["first"],
    ),
    Difference(
        "A topic is created or refused; Kafka creates it and reports a timeout when it was given no time.",
        ["topics.creating_good_topics"],
        ["no time", "negative time"],
    ),
    Difference(
        "Of Kafka's features with versions we have transaction.version alone, and tell no other.",
        ["metadata.the_versions"],
        paths=["*features*", "[0]"],
    ),
)

_QUORUM = (
    Difference(
        "The cluster's state is in a registry: offsets are versions of the image that brokers make of it, "
        "the leader epoch counts elections (of which a busy Kafka has several), and the controllers are "
        "reached where brokers are.",
        ["quorum.the_quorum"],
        ["the metadata"],
        ["*high_watermark", "*log_end_offset", "*leader_epoch", "nodes[0].listeners[0].*"],
    ),
    Difference(
        "Where there is no error there is no message; Kafka's is empty when no partition was named.",
        ["reassignments.reassigning"],
        ["nothing"],
        ["error_message"],
    ),
)

_NO_ELR = (
    "Kafka's eligible leader replicas give min.insync.replicas a value for the whole cluster; we have "
    "no such "
    "feature, so the key has its default."
)
_HOW_KAFKA_IS_STARTED = (
    "Kafka was started with these: it is a node of a KRaft cluster, with its own ports and folders."
)
_FINITE = "A limit that Kafka leaves open, or does not have at all, is finite here."
_CONFIGS = (
    Difference(
        _NO_ELR,
        ["topics.*", "configs.*"],
        paths=["*.configs.min.insync.replicas.*"],
        witness="configs.a_topic",
    ),
    Difference(
        "A resource that is described twice is answered once: 5,000 times the broker were 248 MB.",
        ["configs.unknown_resources"],
        ["twice"],
        ["results"],
    ),
    Difference(_NO_ELR, ["configs.a_broker"], ["the default of all brokers"], ["results[0].configs"]),
    Difference(
        _HOW_KAFKA_IS_STARTED,
        ["configs.a_broker"],
        ["all"],
        [
            f"results[0].configs.{key}.*"
            for key in (
                "advertised.listeners",
                "controller.listener.names",
                "controller.quorum.voters",
                "inter.broker.listener.name",
                "listener.security.protocol.map",
                "listeners",
                "log.dir",
                "log.dirs",
                "offsets.topic.replication.factor",
                "process.roles",
                "share.coordinator.state.topic.min.isr",
                "share.coordinator.state.topic.replication.factor",
                "transaction.state.log.min.isr",
                "transaction.state.log.replication.factor",
            )
        ],
    ),
    Difference(
        _FINITE,
        ["configs.a_broker"],
        ["all"],
        [
            "results[0].configs.max.connections.value",
            "results[0].configs.max.connections.per.ip.value",
            "results[0].configs.queued.max.request.bytes.value",
            "results[0].configs.max.decompressed.message.bytes",
            "results[0].configs.max.partitions",
            "results[0].configs.max.configured.groups",
            "results[0].configs.auto.create.topics.per.minute",
            "results[0].configs.client.memory.max.bytes",
            "results[0].configs.client.memory.max.bytes.per.ip",
            "results[0].configs.max.records.per.batch",
            "results[0].configs.producer.id.max.per.partition",
            "results[0].configs.producer.id.max.per.broker",
            "results[0].configs.transactional.id.max.per.broker",
        ],
    ),
    Difference(
        "The cluster's state is in a registry. These keys say where it is, and what groups put there.",
        ["configs.a_broker"],
        ["all"],
        ["results[0].configs.ottla.registry", "results[0].configs.group.registry.projection"],
    ),
    Difference(
        "Socket buffers are left to the operating system, which costs less; Kafka sets 100 KB.",
        ["configs.a_broker"],
        ["all"],
        [
            "results[0].configs.socket.receive.buffer.bytes.value",
            "results[0].configs.socket.send.buffer.bytes.value",
        ],
    ),
    Difference(
        "The queue of connections to be accepted is as long as the operating system allows; Kafka's 50 drops "
        "connections when many clients connect at once, which costs each of them a second or more.",
        ["configs.a_broker"],
        ["all"],
        ["results[0].configs.socket.listen.backlog.size.value"],
    ),
    Difference(
        "node.id has a default here, so that a broker starts without a configuration.",
        ["configs.a_broker"],
        ["with synonyms"],
        ["results[0].configs.node.id.synonyms"],
    ),
    Difference(
        "A key that no broker knows is refused; Kafka takes it, and the typing error in it, without a word.",
        ["configs.changing_what_is_not_there"],
        ["an unknown key of a broker"],
    ),
)

_STRICT = (
    "Bytes that no client sends, but damage or malice might, close the connection instead of being "
    "guessed at."
)
_FRAMES = (
    Difference(_STRICT, ["connections.counts_that_cannot_be"], ["topics -2", "topics 2^32-2"]),
    Difference(
        _STRICT,
        ["connections.headers_out_of_the_ordinary"],
        ["client id not in UTF-8", "client id of -2", "tags out of order", "a tag twice"],
    ),
    Difference(
        "A client with an unknown version of ApiVersions gets the versions that we know, whatever "
        "else it sent.",
        ["connections.versions_of_api_versions_that_nobody_speaks"],
        ["* with 0 bytes", "* with 20 bytes"],
    ),
)

DIFFERENCES: tuple[Difference, ...] = (
    *_SERVER_ERRORS,
    *_LENIENT_READS,
    *_ANSWERED,
    *_RECORDS,
    *_PRODUCING,
    *_TOPICS,
    *_QUORUM,
    *_CONFIGS,
    *_FRAMES,
    _WORDING,
)
