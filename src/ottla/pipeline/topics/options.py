"""The options of `format("ottla")`: their names, defaults and refusals, for the source and the sink.

The names are those of Spark's Kafka connector (any case), so that existing code moves by changing the format,
and so are the forms: `15m` and `500ms` for times, `64m` for sizes, `{"topic":{"0":17,"1":-1}}` for positions.
`SourceOptions.parse` and `SinkOptions.parse` make plain values of the text; both are frozen, hold nothing
but plain data, and travel to Spark's workers as they are. What is asked for and cannot be done is refused
with an `OptionError`; what is merely without effect is collected in `notices`, to be
logged once when the query is planned.

Settings of Kafka's own clients come as `kafka.<name>`. Those that mean something here are followed, the
others are named in one notice. Settings for TLS and SASL are refused: leaving them out quietly would send
data in the clear.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from ottla.pipeline.patterns import compiled

Place: TypeAlias = tuple[str, int]
"""A partition of a topic."""

LATEST, EARLIEST = -1, -2
"""Stand for a position in the JSON of startingOffsets and endingOffsets."""

_FORM_OF_OFFSETS = '{"topicA":{"0":23,"1":-1},"topicB":{"0":-2}} with -1 for latest and -2 for earliest'
_FORM_OF_TIMES = '{"topicA":{"0":1700000000000}} with times in milliseconds'

_IDLE_IN_SOURCE = ("fetchOffset.numRetries", "fetchOffset.retryIntervalMs")
_IDLE_IN_SINK = ("includeHeaders", "kafka.linger.ms")
"""Options of Spark's connector that need no notice though nothing is made of them."""
_REFUSED_IN_SOURCE = {
    "auto.offset.reset": "say with startingOffsets where a new query begins; later it goes on where it was",
    "key.deserializer": "keys come as bytes; cast or decode the column instead",
    "value.deserializer": "values come as bytes; cast or decode the column instead",
    "enable.auto.commit": "Spark's checkpoint has the position; commitOffsets says whether a group shows it",
    "interceptor.classes": "Java classes cannot be called from here",
}
_REFUSED_IN_SINK = {
    "key.serializer": "give the key column as string or binary",
    "value.serializer": "give the value column as string or binary",
    "interceptor.classes": "Java classes cannot be called from here",
    "partitioner.class": "Java classes cannot be called from here; a partition column chooses the partition",
    "transactional.id": "the sink writes at least once; stages of a pipeline write exactly once",
}
_MILLISECONDS = {"us": 0.001, "ms": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}
_SIZES = {"": 0, "b": 0, "k": 10, "kb": 10, "m": 20, "mb": 20, "g": 30, "gb": 30, "t": 40, "tb": 40}
_SECURITY = ("sasl.", "ssl.", "security.")
_NUMBER_AND_UNIT = re.compile(r"\s*(\d+)\s*([a-z]*)\s*\Z", re.IGNORECASE)


class OptionError(ValueError):
    """An option that cannot be followed. The text says which, why, and what would do."""


class TopicMissing(OptionError):
    """A topic or partition that an option names does not exist, or not yet."""


@dataclass(frozen=True, slots=True)
class Subscription:
    """Which partitions: of certain topics, of all topics whose name matches, or exactly these."""

    kind: Literal["subscribe", "subscribePattern", "assign"]
    topics: tuple[str, ...] = ()
    pattern: str = ""
    places: tuple[Place, ...] = ()

    def __str__(self) -> str:
        if self.kind == "assign":
            return "partitions " + ", ".join(f"{topic}-{partition}" for topic, partition in self.places)
        return f"topics like {self.pattern}" if self.kind == "subscribePattern" else ", ".join(self.topics)


@dataclass(frozen=True, slots=True)
class Bound:
    """Where reading starts or ends, as it was asked for; `offsets.py` makes offsets of it."""

    kind: Literal["earliest", "latest", "offsets", "timestamp", "timestamps", "group"]
    option: str = ""
    """The option that says so, for messages; empty for a default."""
    by_place: tuple[tuple[Place, int], ...] = ()
    timestamp: int = 0
    otherwise: Literal["error", "earliest", "latest"] = "error"
    """For a time that nothing is as late as, and for partitions where the group has committed nothing."""


@dataclass(frozen=True)
class SourceOptions:
    """Everything that can be said to the source."""

    bootstrap: str
    subscription: Subscription
    starting: Bound | None = None
    """None is the default: earliest for batches, latest for streams."""
    ending: Bound | None = None
    include_headers: bool = False
    fail_on_data_loss: bool = True
    min_partitions: int | None = None
    max_records_per_partition: int | None = None
    max_offsets_per_trigger: int | None = None
    min_offsets_per_trigger: int | None = None
    max_bytes_per_trigger: int | None = None
    max_trigger_delay: float = 900.0
    commit_offsets: bool = True
    group_id: str | None = None
    group_id_prefix: str = "ottla-spark"
    offsets_file: str | None = None
    """Where a stream writes down the offsets it began at and the ids of its topics."""
    read_committed: bool = True
    client_id: str = "ottla-spark"
    connect_timeout: float = 10.0
    request_timeout: float = 30.0
    api_timeout: float = 60.0
    """How long a driver waits for brokers that are away."""
    read_timeout: float = 120.0
    """How long a task waits for data that must be there."""
    fetch_wait: float | None = None
    """How long a stream with nothing to do waits for data in one go; None leaves it to the stream."""
    partition_fetch_bytes: int | None = None
    metadata_age: float | None = None
    check_crcs: bool = True
    notices: tuple[str, ...] = ()

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> SourceOptions:
        """The options of a query, batch or stream; `for_batch` and `for_stream` refuse what does not fit."""
        given = _Given(options, "source", _IDLE_IN_SOURCE, _REFUSED_IN_SOURCE)
        strategy = given.text("startingOffsetsByTimestampStrategy", "error").lower()
        if strategy not in ("error", "latest"):
            raise OptionError(
                f"startingOffsetsByTimestampStrategy is {strategy!r}: error or latest is wanted"
            )
        least = given.number("minOffsetsPerTrigger")
        most = given.number("maxOffsetsPerTrigger")
        if least is not None and most is not None and least > most:
            raise OptionError(f"minOffsetsPerTrigger ({least}) is higher than maxOffsetsPerTrigger ({most})")
        starting = _bound(given, "starting", "latest" if strategy == "latest" else "error")
        if starting is not None and starting.kind == "group" and not given.text("kafka.group.id"):
            raise OptionError("startingOffsets is group: kafka.group.id has to say which group")
        isolation = given.text("kafka.isolation.level", "read_committed").lower()
        if isolation not in ("read_committed", "read_uncommitted"):
            raise OptionError(
                f"kafka.isolation.level is {isolation!r}: read_committed or read_uncommitted is wanted"
            )
        cached = given.number("partition.metadata.cache.ttl.ms", least=-1)
        age = given.optional_seconds("kafka.metadata.max.age.ms")
        return cls(
            bootstrap=given.bootstrap(),
            subscription=_subscription(given),
            starting=starting,
            ending=_bound(given, "ending", "latest"),
            include_headers=given.yes("includeHeaders", False),
            fail_on_data_loss=given.yes("failOnDataLoss", True),
            min_partitions=given.number("minPartitions"),
            max_records_per_partition=given.number("maxRecordsPerPartition"),
            max_offsets_per_trigger=most,
            min_offsets_per_trigger=least,
            max_bytes_per_trigger=given.size("maxBytesPerTrigger"),
            max_trigger_delay=given.milliseconds("maxTriggerDelay", "15m") / 1000,
            commit_offsets=given.yes("commitOffsets", True),
            group_id=given.text("kafka.group.id") or None,
            group_id_prefix=given.text("groupIdPrefix") or cls.group_id_prefix,
            offsets_file=given.text("offsetsFile") or None,
            read_committed=isolation == "read_committed",
            client_id=given.text("kafka.client.id") or cls.client_id,
            connect_timeout=given.seconds("kafka.socket.connection.setup.timeout.ms", cls.connect_timeout),
            request_timeout=given.seconds("kafka.request.timeout.ms", cls.request_timeout),
            api_timeout=given.seconds("kafka.default.api.timeout.ms", cls.api_timeout),
            read_timeout=given.seconds("kafkaConsumer.pollTimeoutMs", cls.read_timeout),
            fetch_wait=given.optional_seconds("kafka.fetch.max.wait.ms"),
            partition_fetch_bytes=given.number("kafka.max.partition.fetch.bytes"),
            metadata_age=cached / 1000 if cached and cached > 0 else age,
            check_crcs=given.yes("kafka.check.crcs", True),
            notices=given.notices(),
        )

    def for_batch(self) -> SourceOptions:
        """Refuse what makes no sense for a batch query."""
        starting, ending = self.starting, self.ending
        if starting is not None:
            latest = [
                place
                for place, number in starting.by_place
                if starting.kind == "offsets" and number == LATEST
            ]
            if (
                starting.kind == "latest"
                or latest
                or (starting.kind == "group" and starting.otherwise == "latest")
            ):
                where = f" for {_name(latest[0])}" if latest else ""
                raise OptionError(
                    f"startingOffsets cannot be latest{where} in a batch query: nothing would be read"
                )
        if ending is not None and ending.kind in ("earliest", "group"):
            raise OptionError(f"endingOffsets cannot be {ending.kind} in a batch query")
        if (
            starting is not None
            and ending is not None
            and starting.kind == ending.kind in ("offsets", "timestamps")
        ):
            _check_order(starting, ending)
        if ending is not None and ending.kind == "offsets":
            for place, number in ending.by_place:
                if number == EARLIEST:
                    raise OptionError(f"endingOffsets cannot be earliest for {_name(place)} in a batch query")
        return self

    def for_stream(self) -> SourceOptions:
        """Refuse what makes no sense for a stream."""
        if self.ending is not None:
            raise OptionError(
                f"{self.ending.option} cannot be given for a stream: it has no end. Use spark.read, "
                "or trigger(availableNow=True) to stop at what is there now"
            )
        return self

    @property
    def group(self) -> str:
        """The group that shows the progress of a stream: the one given, or one derived from what it reads."""
        if self.group_id:
            return self.group_id
        chosen = self.subscription
        if chosen.kind == "subscribe" and len(chosen.topics) <= 3:
            return ".".join((self.group_id_prefix, *chosen.topics))
        from hashlib import sha256

        return f"{self.group_id_prefix}.{sha256(str(chosen).encode()).hexdigest()[:12]}"


@dataclass(frozen=True)
class SinkOptions:
    """Everything that can be said to the sink."""

    bootstrap: str
    topic: str | None = None
    """Where rows go; None leaves it to the topic column. The option wins over the column."""
    acks: int = -1
    compression: str = "none"
    batch_bytes: int = 1 << 20
    idempotent: bool = True
    client_id: str = "ottla-spark"
    connect_timeout: float = 10.0
    request_timeout: float = 30.0
    delivery_timeout: float = 120.0
    max_request_bytes: int = 1 << 20
    cut_oversized: bool = False
    """Cut a record that is larger than its topic takes, instead of failing."""
    include_timestamp: bool = False
    """Records carry the time of the column `timestamp`, instead of the time of writing."""
    transaction_timeout_ms: int | None = None
    """For stages that write exactly once; None lets them choose."""
    notices: tuple[str, ...] = ()

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> SinkOptions:
        given = _Given(options, "sink", _IDLE_IN_SINK, _REFUSED_IN_SINK)
        acks = given.text("kafka.acks", "all").lower()
        if acks not in ("all", "-1", "1", "0"):
            raise OptionError(f"kafka.acks is {acks!r}: all, 1 or 0 is wanted")
        codec = given.text("kafka.compression.type", "none").lower()
        if codec not in ("none", "gzip", "snappy", "lz4", "zstd"):
            raise OptionError(
                f"kafka.compression.type is {codec!r}: none, gzip, snappy, lz4 or zstd is wanted"
            )
        oversized = given.text("oversized", "fail").lower()
        if oversized not in ("fail", "cut"):
            raise OptionError(f"oversized is {oversized!r}: fail or cut is wanted")
        return cls(
            bootstrap=given.bootstrap(),
            topic=given.text("topic") or None,
            acks=-1 if acks == "all" else int(acks),
            compression=codec,
            batch_bytes=given.number("kafka.batch.size", least=0) or cls.batch_bytes,
            idempotent=given.yes("kafka.enable.idempotence", acks in ("all", "-1")),
            client_id=given.text("kafka.client.id") or cls.client_id,
            connect_timeout=given.seconds("kafka.socket.connection.setup.timeout.ms", cls.connect_timeout),
            request_timeout=given.seconds("kafka.request.timeout.ms", cls.request_timeout),
            delivery_timeout=given.seconds("kafka.delivery.timeout.ms", cls.delivery_timeout),
            max_request_bytes=given.number("kafka.max.request.size") or cls.max_request_bytes,
            cut_oversized=oversized == "cut",
            include_timestamp=given.yes("includeTimestamp", False),
            transaction_timeout_ms=given.number("kafka.transaction.timeout.ms"),
            notices=given.notices(),
        )


def _subscription(given: _Given) -> Subscription:
    chosen = [name for name in ("subscribe", "subscribePattern", "assign") if given.has(name)]
    if len(chosen) != 1:
        how = "only one of them can be given" if chosen else "one of them is needed"
        raise OptionError(f"subscribe, subscribePattern and assign say what is read: {how}")
    (name,) = chosen
    if name == "assign":
        return Subscription("assign", places=given.partition_lists(name))
    if name == "subscribePattern":
        return Subscription("subscribePattern", pattern=given.pattern(name))
    return Subscription("subscribe", topics=given.topic_list(name))


def _bound(
    given: _Given, side: Literal["starting", "ending"], no_match: Literal["error", "latest"]
) -> Bound | None:
    """What is said of one end. A time for all wins over times by partition, and those over offsets."""
    name, by_place, for_all = f"{side}Offsets", f"{side}OffsetsByTimestamp", f"{side}Timestamp"
    is_given = {each: given.has(each) for each in (name, by_place, for_all)}
    if is_given[for_all]:
        return Bound("timestamp", for_all, timestamp=given.number(for_all, 0) or 0, otherwise=no_match)
    if is_given[by_place]:
        times = given.numbers_by_place(by_place, 0, _FORM_OF_TIMES)
        return Bound("timestamps", by_place, by_place=tuple(times.items()), otherwise=no_match)
    if not is_given[name]:
        return None
    text = given.text(name)
    word, _, otherwise = text.lower().partition(",")
    if word == "group":
        fallback = otherwise.strip() or "earliest"
        if fallback == "earliest":
            return Bound("group", name, otherwise="earliest")
        if fallback == "latest":
            return Bound("group", name, otherwise="latest")
        raise OptionError(f"{name} is {text!r}: group, group,earliest or group,latest is wanted")
    if text.lower() == "earliest" or text.lower() == "latest":
        return Bound("earliest" if text.lower() == "earliest" else "latest", name)
    offsets = given.numbers_by_place(name, EARLIEST, f"earliest, latest, group, or {_FORM_OF_OFFSETS}")
    return Bound("offsets", name, by_place=tuple(offsets.items()))


def _check_order(starting: Bound, ending: Bound) -> None:
    starts, ends = dict(starting.by_place), dict(ending.by_place)
    if starts.keys() != ends.keys():
        different = ", ".join(_name(place) for place in sorted(starts.keys() ^ ends.keys()))
        raise OptionError(
            f"{starting.option} and {ending.option} do not name the same partitions: {different}"
        )
    for place, start in starts.items():
        if 0 <= ends[place] < start:
            raise OptionError(
                f"{starting.option} for {_name(place)} is {start}, past {ending.option} {ends[place]}"
            )


def _name(place: Place) -> str:
    return f"partition {place[1]} of topic {place[0]}"


class _Given:
    """The options of a query as text, by name in any case. Those that are asked for are the ones there are:
    `notices`, which comes last, tells the others."""

    def __init__(
        self, options: Mapping[str, str], role: str, idle: Sequence[str], refused: Mapping[str, str]
    ) -> None:
        self._texts = {name.lower(): value for name, value in options.items() if value is not None}
        self._role = role
        self._known = {name.lower(): name for name in idle}
        for name in self._kafka():
            if name in refused:
                raise OptionError(f"kafka.{name} cannot be set: {refused[name]}")
            plain = name == "security.protocol" and self.text("kafka." + name).upper() == "PLAINTEXT"
            if name.startswith(_SECURITY) and not plain:
                raise OptionError(
                    f"kafka.{name} cannot be followed: connections with TLS or SASL are not spoken yet. "
                    "Use a listener with security.protocol PLAINTEXT"
                )

    def _kafka(self) -> list[str]:
        return sorted(name.removeprefix("kafka.") for name in self._texts if name.startswith("kafka."))

    def notices(self) -> tuple[str, ...]:
        found = []
        unknown = [f"kafka.{name}" for name in self._kafka() if f"kafka.{name}" not in self._known]
        if unknown:
            found.append(f"without effect on this {self._role}: {', '.join(unknown)}")
        for name in sorted(self._texts.keys() - self._known.keys()):
            if not name.startswith("kafka."):
                from difflib import get_close_matches  # rarely needed, and all workers load this module

                near = get_close_matches(name, self._known, 1)
                hint = f"; did you mean {self._known[near[0]]}?" if near else ""
                found.append(f"the option {name} is unknown to this {self._role} and without effect{hint}")
        return tuple(found)

    def has(self, name: str) -> bool:
        self._known[name.lower()] = name
        return name.lower() in self._texts

    def text(self, name: str, default: str = "") -> str:
        return self._texts[name.lower()].strip() if self.has(name) else default

    def yes(self, name: str, default: bool) -> bool:
        text = self.text(name, str(default))
        if text.lower() not in ("true", "false"):
            raise OptionError(f"{name} is {text!r}: true or false is wanted")
        return text.lower() == "true"

    def number(self, name: str, least: int = 1) -> int | None:
        if not self.has(name):
            return None
        try:
            number = int(self.text(name))
        except ValueError:
            raise OptionError(f"{name} is {self.text(name)!r}: a whole number is wanted") from None
        if number < least:
            raise OptionError(f"{name} is {number}: it must be at least {least}")
        return number

    def optional_seconds(self, name: str, least: int = 0) -> float | None:
        found = self.number(name, least)
        return None if found is None else found / 1000

    def seconds(self, name: str, default: float, least: int = 1) -> float:
        found = self.optional_seconds(name, least)
        return default if found is None else found

    def milliseconds(self, name: str, default: str) -> int:
        """`15m`, `30s`, `500ms`; a bare number is milliseconds."""
        text = self.text(name, default)
        match = _NUMBER_AND_UNIT.match(text)
        unit = (match[2].lower() or "ms") if match else ""
        if not match or unit not in _MILLISECONDS:
            raise OptionError(f"{name} is {text!r}: a time is wanted, for example 500ms, 30s or 15m")
        return int(int(match[1]) * _MILLISECONDS[unit])

    def size(self, name: str) -> int | None:
        """`64m`, `1g`, `100k`; a bare number is bytes."""
        if not self.has(name):
            return None
        text = self.text(name)
        match = _NUMBER_AND_UNIT.match(text)
        if not match or match[2].lower() not in _SIZES:
            raise OptionError(f"{name} is {text!r}: a size is wanted, for example 64m or 1000000")
        number = int(match[1]) << _SIZES[match[2].lower()]
        if number < 1:
            raise OptionError(f"{name} is {text!r}: it must be at least 1 byte")
        return number

    def pattern(self, name: str) -> str:
        text = self.text(name)
        if not text:
            raise OptionError(f"{name} is empty: a regular expression for names of topics is wanted")
        try:
            return compiled(text).pattern
        except re.error as error:
            raise OptionError(
                f"{name} is {text!r}, which is no regular expression ({error}). It is read by Python's `re`, "
                "which takes nearly all that Java's takes; \\p{...} classes have to be written out"
            ) from None

    def topic_list(self, name: str) -> tuple[str, ...]:
        text = self.text(name)
        topics = tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
        if not topics:
            raise OptionError(f"{name} is {text!r}: it names no topic")
        return topics

    def partition_lists(self, name: str) -> tuple[Place, ...]:
        """`{"topicA":[0,1],"topicB":[2]}` as places, in order."""
        wanted = '{"topicA":[0,1],"topicB":[2]}'
        places = []
        for topic, partitions in self._object(name, wanted).items():
            if not isinstance(partitions, list) or not all(_is_number(p) and p >= 0 for p in partitions):
                raise OptionError(f"{name} is {self.text(name)!r}: {wanted} is the form")
            places += [(topic, p) for p in partitions]
        if not places:
            raise OptionError(f"{name} is {self.text(name)!r}: it names no partition")
        return tuple(sorted(set(places)))

    def numbers_by_place(self, name: str, least: int, wanted: str) -> dict[Place, int]:
        """`{"topicA":{"0":23,"1":-1}}` as a number for each place, in order."""
        places: dict[Place, int] = {}
        for topic, partitions in self._object(name, wanted).items():
            if not isinstance(partitions, dict):
                raise OptionError(f"{name} is {self.text(name)!r}: {wanted} is the form")
            for partition, number in partitions.items():
                if not partition.isdecimal() or not _is_number(number) or number < least:
                    given = json.dumps({partition: number})
                    raise OptionError(f"{name} has {given} for topic {topic!r}: {wanted} is the form")
                places[topic, int(partition)] = number
        return dict(sorted(places.items()))

    def _object(self, name: str, wanted: str) -> Mapping[str, Any]:
        try:
            found = json.loads(self.text(name))
        except ValueError:
            found = None
        if not isinstance(found, dict):
            raise OptionError(f"{name} is {self.text(name)!r}: JSON is wanted, in the form {wanted}")
        return found

    def bootstrap(self) -> str:
        from ottla.protocol_client.wire import parse_bootstrap

        servers = self.text("kafka.bootstrap.servers")
        if not servers:
            raise OptionError("kafka.bootstrap.servers has to say where the brokers are, as host:port,...")
        try:
            parse_bootstrap(servers)
        except ValueError as error:
            raise OptionError(f"kafka.bootstrap.servers: {error}") from None
        return servers


def _is_number(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
