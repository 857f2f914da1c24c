"""What `.option(...)` may say, parsed and checked without a cluster. Names are Kafka's where the meaning is."""

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, cast

from kappamq.errors import UsageError
from kappamq.model.message import Queue
from kappamq.model.names import check_group, check_topic
from kappamq.model.selector import SQL92, Selector
from kappamq.spark.offsets import AtTime, End, Place, parse_assignment, parse_place, parse_queue_numbers

GROUP_DEFAULT: Final = "kappamq-spark"
DELAY_UNITS_MS: Final = {"ms": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}

_ALIASES: Final = {
    "nameserver": "namesrvAddr",
    "endpoints": "namesrvAddr",
    "subexpression": "tagExpression",
    "fetchoffset.numretries": "retries",
    "fetchoffset.retryintervalms": "retryIntervalMs",
    "kafkaconsumer.polltimeoutms": "pullTimeoutMs",
    "kafka.group.id": "group",
    "consumergroup": "group",
    "groupidprefix": "group",
}

READ_NAMES: Final = (
    "namesrvAddr",
    "subscribe",
    "subscribePattern",
    "assign",
    "includeSystemTopics",
    "startingOffsets",
    "endingOffsets",
    "startingTimestamp",
    "endingTimestamp",
    "startingOffsetsByTimestamp",
    "endingOffsetsByTimestamp",
    "startingOffsetsByTimestampStrategy",
    "failOnDataLoss",
    "maxOffsetsPerTrigger",
    "maxBytesPerTrigger",
    "minOffsetsPerTrigger",
    "maxTriggerDelay",
    "minPartitions",
    "maxRecordsPerPartition",
    "discoveryIntervalMs",
    "group",
    "commitGroupOffsets",
    "tagExpression",
    "sqlFilter",
    "pushFilters",
    "pullBatchSize",
    "pullTimeoutMs",
    "retries",
    "retryIntervalMs",
    "includeHeaders",
    "mode",
    "storePath",
    "brokerName",
)

WRITE_NAMES: Final = (
    "namesrvAddr",
    "topic",
    "group",
    "sendTimeoutMs",
    "inflightMax",
    "compression",
    "compressFromBytes",
    "idPrefix",
    "includeHeaders",
    "transactional",
    "maxRowsPerSecond",
)

_SPARKS_OWN: Final = ("checkpointlocation", "path", "queryname")
_SPARKS_PREFIXES: Final = ("asyncprogress", "__")

_RESERVED: Final = (
    "accesskey",
    "secretkey",
    "securitytoken",
    "namespace",
    "usetls",
    "vipchannelenabled",
    "kerberos",
)
_RESERVED_PREFIXES: Final = ("client.", "tls.", "ssl.", "acl.", "kafka.security.", "kafka.sasl.", "kafka.ssl.")

_BROKER_AND_PATH: Final = re.compile(r"([^/=]+)=(.+)")
"""A store with the name of its broker; a directory with `=` in its name is written with `/` before it."""

_SAID_OTHERWISE: Final = {
    "kafka.bootstrap.servers": ("namesrvAddr",),
    "bootstrap.servers": ("namesrvAddr",),
    "topic": ("subscribe",),
    "topics": ("subscribe", "topic"),
    "subscribe": ("topic",),
}
"""What others call an option: the name of it for reading, or for writing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """How a topic is read."""

    name_servers: str
    topics: tuple[str, ...] = ()
    pattern: str | None = None
    assigned: frozenset[Queue] = frozenset()
    includes_system: bool = False
    start: Place | None = None
    """`None` is the default of the reader: earliest for a table, latest for a stream."""
    end: Place = End.LATEST
    late_start_fails: bool = True
    """Whether a start time after the last message is an error, or means latest."""
    fails_on_loss: bool = True
    rows_max: int | None = None
    bytes_max: int | None = None
    rows_min: int | None = None
    trigger_delay_ms: int = 15 * 60_000
    partitions_min: int | None = None
    partition_rows_max: int | None = None
    discovery_ms: int = 5_000
    group: str = GROUP_DEFAULT
    mirrored_group: str | None = None
    expression: str | None = None
    expression_type: str | None = None
    pushes_filters: bool = False
    """Whether Spark's filters may leave out messages: wrong for a frame that several queries use, see the docs."""
    pull_count: int = 1024
    pull_timeout_ms: int = 10_000
    retries: int = 5
    retry_interval_ms: int = 200
    mode: Literal["pull", "files"] = "pull"
    store_paths: Mapping[str, Path] | None = None
    """Files mode: broker name → its store directory."""

    @property
    def selector(self) -> Selector | None:
        return None if self.expression is None else Selector.parse(self.expression, self.expression_type)

    @property
    def subject(self) -> str:
        """The topics, for messages."""
        return self.pattern or ",".join(self.topics or sorted({queue.topic for queue in self.assigned}))


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteOptions:
    """How rows become messages."""

    name_servers: str
    topic: str | None = None
    group: str = GROUP_DEFAULT
    send_timeout_ms: int = 10_000
    inflight_max: int = 1024
    compression: str = "none"
    compress_from_bytes: int = 4096
    id_prefix: str | None = None
    """Instead of the query's id in message ids: equal batch writes then give equal ids."""
    is_transactional: bool = False
    rows_per_second: int | None = None
    """Limit for one task, or for the delivery of a transactional write."""


def parse_read_options(options: Mapping[str, str], *, is_stream: bool) -> ReadOptions:
    """Options of a reader. Raises `UsageError` that names the option, its value and what would be right."""
    given = _Given(options, READ_NAMES)
    mode = given.choice("mode", ("pull", "files"), "pull")
    topics, pattern, assigned = _subjects(given)
    if is_stream:
        given.forbid("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp", why="a stream has no end")
    else:
        given.forbid("commitGroupOffsets", why="only a stream has progress: use readStream")
    start = _start_place(given)
    end = _place(given, "endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp") or End.LATEST
    if not is_stream and start is End.LATEST:
        raise UsageError("startingOffsets is latest, so the table would be empty: use earliest, JSON or group:<name>")
    if end is End.EARLIEST:
        raise UsageError("endingOffsets is earliest, so the table would be empty: use latest or JSON")
    if mode == "files" and is_stream:
        raise UsageError("mode=files reads a table, not a stream: use spark.read, or mode=pull")
    expression, expression_type = _filter(given)
    trigger_delay = given.text("maxTriggerDelay")
    return ReadOptions(
        name_servers=_name_servers(given, needed=mode == "pull"),
        topics=topics,
        pattern=pattern,
        assigned=assigned,
        includes_system=given.flag("includeSystemTopics", default=False),
        start=start,
        end=end,
        late_start_fails=given.choice("startingOffsetsByTimestampStrategy", ("error", "latest"), "error") == "error",
        fails_on_loss=given.flag("failOnDataLoss", default=True),
        rows_max=given.positive("maxOffsetsPerTrigger"),
        bytes_max=given.positive("maxBytesPerTrigger"),
        rows_min=given.positive("minOffsetsPerTrigger"),
        trigger_delay_ms=_delay_ms(trigger_delay) if trigger_delay else 15 * 60_000,
        partitions_min=given.positive("minPartitions"),
        partition_rows_max=given.positive("maxRecordsPerPartition"),
        discovery_ms=given.positive("discoveryIntervalMs") or 5_000,
        group=_group(given, "group") or GROUP_DEFAULT,
        mirrored_group=_group(given, "commitGroupOffsets"),
        expression=expression,
        expression_type=expression_type,
        pushes_filters=given.flag("pushFilters", default=False),
        pull_count=given.positive("pullBatchSize") or 1024,
        pull_timeout_ms=given.positive("pullTimeoutMs") or 10_000,
        retries=given.number("retries", 5),
        retry_interval_ms=given.positive("retryIntervalMs") or 200,
        mode=cast(Literal["pull", "files"], mode),
        store_paths=_store_paths(given, mode),
    )


def parse_write_options(options: Mapping[str, str]) -> WriteOptions:
    """Options of a writer."""
    given = _Given(options, WRITE_NAMES)
    topic = given.text("topic")
    if topic is not None:
        check_topic(topic)
    return WriteOptions(
        name_servers=_name_servers(given, needed=True),
        topic=topic,
        group=_group(given, "group") or GROUP_DEFAULT,
        send_timeout_ms=given.positive("sendTimeoutMs") or 10_000,
        inflight_max=given.positive("inflightMax") or 1024,
        compression=given.choice("compression", ("none", "zlib", "lz4", "zstd"), "none"),
        compress_from_bytes=given.positive("compressFromBytes") or 4096,
        id_prefix=given.text("idPrefix"),
        is_transactional=given.flag("transactional", default=False),
        rows_per_second=given.positive("maxRowsPerSecond"),
    )


class _Given:
    """Options by their proper names; every name is known, every value not blank."""

    def __init__(self, options: Mapping[str, str], names: tuple[str, ...]) -> None:
        known = {name.lower(): name for name in names}
        aliases = {alias: name for alias, name in _ALIASES.items() if name in names}
        self._values: dict[str, str] = {}
        for raw, value in options.items():
            key = raw.lower()
            name = known.get(key) or aliases.get(key)
            if name is None:
                _check_ignored(raw, names)
                continue
            if name in self._values and self._values[name] != str(value):
                raise UsageError(f"{name} is given twice, under two names, with different values: keep one")
            self._values[name] = str(value)

    def text(self, name: str) -> str | None:
        value = self._values.get(name)
        if value is None:
            return None
        if not value.strip():
            raise UsageError(f"{name} is empty: give it a value or leave it out")
        return value.strip()

    def choice(self, name: str, choices: tuple[str, ...], default: str) -> str:
        value = (self.text(name) or default).lower()
        if value not in choices:
            raise UsageError(f"{name} is {value!r}: use {' or '.join(choices)}")
        return value

    def flag(self, name: str, *, default: bool) -> bool:
        return self.choice(name, ("true", "false"), str(default).lower()) == "true"

    def number(self, name: str, default: int) -> int:
        value = self.text(name)
        if value is None:
            return default
        if not (value.isascii() and value.isdecimal()):
            raise UsageError(f"{name} is {value!r}: use a whole number")
        return int(value)

    def positive(self, name: str) -> int | None:
        if name not in self._values:
            return None
        value = self.number(name, 0)
        if value < 1:
            raise UsageError(f"{name} is {value}: use at least 1, or leave it out")
        return value

    def forbid(self, *names: str, why: str) -> None:
        for name in names:
            if name in self._values:
                raise UsageError(f"{name} cannot be used here: {why}")

    def present(self, *names: str) -> list[str]:
        return [name for name in names if name in self._values]


def _check_ignored(raw: str, names: tuple[str, ...]) -> None:
    key = raw.lower()
    if key in _SPARKS_OWN or key.startswith(_SPARKS_PREFIXES):
        return
    if key in _RESERVED or key.startswith(_RESERVED_PREFIXES):
        raise UsageError(
            f"option {raw!r} is reserved for access control, TLS and namespaces, which this source does not have yet: "
            "remove it and reach the cluster over a trusted network"
        )
    instead = next((name for name in _SAID_OTHERWISE.get(key, ()) if name in names), None)
    if instead is None:
        close = difflib.get_close_matches(key, [name.lower() for name in names], n=1, cutoff=0.5)
        instead = next((name for name in names if close and name.lower() == close[0]), None)
    hint = f"did you mean {instead!r}?" if instead else f"known are {', '.join(names)}"
    raise UsageError(f"there is no option {raw!r}: {hint}")


def _subjects(given: _Given) -> tuple[tuple[str, ...], str | None, frozenset[Queue]]:
    present = given.present("subscribe", "subscribePattern", "assign")
    if len(present) != 1:
        what = " and ".join(present) + " exclude each other" if present else "no topic is named"
        raise UsageError(f"{what}: give exactly one of subscribe, subscribePattern and assign")
    topics: tuple[str, ...] = ()
    subscribed = given.text("subscribe")
    if subscribed is not None:
        topics = tuple(dict.fromkeys(name for piece in subscribed.split(",") if (name := piece.strip())))
        if not topics:
            raise UsageError(f"subscribe is {subscribed!r}: name topics with commas between them")
        for topic in topics:
            check_topic(topic)
    pattern = given.text("subscribePattern")
    if pattern is not None:
        try:
            re.compile(pattern)
        except re.error as fault:
            raise UsageError(f"subscribePattern {pattern!r} is not a regular expression: {fault}") from None
    assign = given.text("assign")
    return topics, pattern, parse_assignment("assign", assign) if assign is not None else frozenset()


def _start_place(given: _Given) -> Place | None:
    return _place(given, "startingOffsets", "startingTimestamp", "startingOffsetsByTimestamp")


def _place(given: _Given, offsets: str, timestamp: str, by_timestamp: str) -> Place | None:
    """As with Kafka, a time for all wins over a time for each, and that over offsets."""
    if given.text(timestamp) is not None:
        return AtTime(given.number(timestamp, 0))
    text = given.text(by_timestamp)
    if text is not None:
        return AtTime(parse_queue_numbers(by_timestamp, text))
    text = given.text(offsets)
    return parse_place(offsets, text) if text is not None else None


def _filter(given: _Given) -> tuple[str | None, str | None]:
    tags, sql = given.text("tagExpression"), given.text("sqlFilter")
    if tags is not None and sql is not None:
        raise UsageError("tagExpression and sqlFilter exclude each other: SQL can compare TAGS, too")
    if sql is not None:
        Selector.parse(sql, SQL92)
        return sql, SQL92
    if tags is not None:
        Selector.parse(tags, None)
    return tags, None


def _name_servers(given: _Given, *, needed: bool) -> str:
    value = given.text("namesrvAddr")
    if value is None and needed:
        raise UsageError("no name server is given: set the option namesrvAddr, for example to 127.0.0.1:9876")
    return value or ""


def _group(given: _Given, name: str) -> str | None:
    group = given.text(name)
    if group is not None:
        check_group(group)
    return group


def _store_paths(given: _Given, mode: str) -> dict[str, Path] | None:
    text, broker = given.text("storePath"), given.text("brokerName")
    if mode != "files":
        given.forbid("storePath", "brokerName", why="they belong to mode=files")
        return None
    if text is None:
        raise UsageError("mode=files needs storePath: the directory that holds commitlog and consumequeue")
    pieces = [piece.strip() for piece in text.split(",") if piece.strip()]
    pairs = [match for piece in pieces if (match := _BROKER_AND_PATH.fullmatch(piece))]
    if pairs:
        if len(pairs) != len(pieces) or broker is not None:
            raise UsageError(f"storePath is {text!r}: write broker=directory for each store, and leave brokerName out")
        names, paths = [match[1] for match in pairs], [Path(match[2]) for match in pairs]
    else:
        paths = [Path(piece) for piece in pieces]
        names = [piece.strip() for piece in broker.split(",")] if broker else [path.name for path in paths]
    if len(names) != len(paths) or len(set(names)) != len(names):
        raise UsageError(
            f"{len(paths)} store paths have the broker names {', '.join(names)}: "
            "give one different name for each, as broker=directory"
        )
    return dict(zip(names, paths))


def _delay_ms(text: str) -> int:
    match = re.fullmatch(rf"(\d+)\s*({'|'.join(DELAY_UNITS_MS)})", text)
    if match is None:
        units = ", ".join(DELAY_UNITS_MS)
        raise UsageError(f"maxTriggerDelay is {text!r}: write a number and a unit ({units}), for example 15m")
    return int(match[1]) * DELAY_UNITS_MS[match[2]]
