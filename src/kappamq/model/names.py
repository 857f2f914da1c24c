"""Names of topics and groups: what is allowed, what is reserved."""

import re
from typing import Final

from kappamq.errors import InvalidName

TOPIC_CHARACTERS_MAX: Final = 127
RETRY_TOPIC_CHARACTERS_MAX: Final = 255
GROUP_CHARACTERS_MAX: Final = 120

RETRY_PREFIX: Final = "%RETRY%"
DEAD_LETTER_PREFIX: Final = "%DLQ%"
SYSTEM_PREFIX: Final = "rmq_sys_"

TEMPLATE_TOPIC: Final = "TBW102"
SCHEDULE_TOPIC: Final = "SCHEDULE_TOPIC_XXXX"
HALF_TOPIC: Final = "RMQ_SYS_TRANS_HALF_TOPIC"
OPERATION_TOPIC: Final = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
GIVEN_UP_TOPIC: Final = "TRANS_CHECK_MAX_TIME_TOPIC"
SELF_TEST_TOPIC: Final = "SELF_TEST_TOPIC"
OFFSET_MOVED_TOPIC: Final = "OFFSET_MOVED_EVENT"
BENCHMARK_TOPIC: Final = "BenchmarkTest"
TRACE_TOPIC: Final = "RMQ_SYS_TRACE_TOPIC"
TIMER_TOPIC: Final = "rmq_sys_wheel_timer"
REPLY_TOPIC_SUFFIX: Final = "_REPLY_TOPIC"

WRITE_PROTECTED_TOPICS: Final = frozenset(
    {SCHEDULE_TOPIC, HALF_TOPIC, OPERATION_TOPIC, GIVEN_UP_TOPIC, SELF_TEST_TOPIC, OFFSET_MOVED_TOPIC, TIMER_TOPIC}
)
"""Topics that only the broker itself may write."""

FIXED_SYSTEM_TOPICS: Final = WRITE_PROTECTED_TOPICS | {TEMPLATE_TOPIC, BENCHMARK_TOPIC, TRACE_TOPIC}

SYSTEM_GROUPS: Final = (
    "TOOLS_CONSUMER",
    "FILTERSRV_CONSUMER",
    "SELF_TEST_C_GROUP",
    "CID_ONS-HTTP-PROXY",
    "CID_ONSAPI_PULL",
    "CID_ONSAPI_PERMISSION",
    "CID_ONSAPI_OWNER",
    "CID_RMQ_SYS_TRANS",
)
"""Groups that exist on every broker from the start."""

_ALLOWED = re.compile(r"[%|a-zA-Z0-9_-]+")


def check_topic(name: str) -> None:
    """Raise `InvalidName` unless `name` can be a topic (and so a directory name)."""
    longest = (
        RETRY_TOPIC_CHARACTERS_MAX if name.startswith((RETRY_PREFIX, DEAD_LETTER_PREFIX)) else TOPIC_CHARACTERS_MAX
    )
    _check("topic", name, longest)


def check_group(name: str) -> None:
    """Raise `InvalidName` unless `name` can be a producer or consumer group."""
    _check("group", name, GROUP_CHARACTERS_MAX)


def is_retry_topic(topic: str) -> bool:
    return topic.startswith(RETRY_PREFIX)


def retry_topic(group: str) -> str:
    """Topic that holds what `group` failed to consume and will see again."""
    return RETRY_PREFIX + group


def dead_letter_topic(group: str) -> str:
    """Topic that holds what `group` gave up on."""
    return DEAD_LETTER_PREFIX + group


def _check(kind: str, name: str, longest: int) -> None:
    if len(name) > longest:
        raise InvalidName(f"{kind} name of {len(name)} characters is too long: use at most {longest}")
    if not _ALLOWED.fullmatch(name):
        shown = name if len(name) <= 40 else name[:40] + "…"
        raise InvalidName(f"{kind} name {shown!r} is not allowed: use letters, digits, '%', '|', '_' and '-' only")
