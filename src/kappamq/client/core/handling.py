"""What a handler is, and what its outcome means for the messages it was given."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, Final, TypeAlias

from kappamq.errors import UsageError
from kappamq.model.message import StoredMessage

BATCH_SIZE_MAX: Final = 1024
DEAD_LETTER_LEVEL: Final = -1
CAUSE_CHARACTERS_MAX: Final = 500


class Progress(Enum):
    """What an orderly handler that commits by itself (`auto_commit=False`) may return. Nothing means `KEEP`."""

    COMMIT = auto()
    """Everything handled so far is consumed."""
    KEEP = auto()
    """Handled, but not yet consumed: it comes again if this consumer ends or a rollback follows before a commit."""
    ROLLBACK = auto()
    """Everything since the last commit comes again after a pause."""


OneHandler: TypeAlias = Callable[[StoredMessage], Awaitable[Progress | None] | Progress | None]
BatchHandler: TypeAlias = Callable[[list[StoredMessage]], Awaitable[Progress | int | None] | Progress | int | None]


class RetryLater(Exception):
    """Raised by a handler that wants the message again.

    `delay_level` chooses RocketMQ's delay: 1 to 18 for 1 s to 2 h, 0 to let the broker decide by the number of
    deliveries, -1 to give up at once and put the message into the dead-letter topic. Orderly consumers stop the queue
    for `pause_ms` instead.
    """

    def __init__(self, reason: str = "", *, delay_level: int = 0, pause_ms: int | None = None) -> None:
        super().__init__(reason)
        self.delay_level = delay_level
        self.pause_ms = pause_ms


@dataclass(frozen=True, slots=True)
class Handler:
    """A user's function and how many messages it gets at once. A batch of one is passed as the message itself."""

    function: Callable[..., Any]
    batch_size: int = 1
    takes_list: bool = False
    auto_commit: bool = True

    def __post_init__(self) -> None:
        if not 1 <= self.batch_size <= BATCH_SIZE_MAX:
            raise UsageError(f"batch_size is {self.batch_size}: use 1 to {BATCH_SIZE_MAX}")

    def argument(self, messages: Sequence[StoredMessage]) -> StoredMessage | list[StoredMessage]:
        """What the function is called with."""
        return list(messages) if self.takes_list else messages[0]


@dataclass(frozen=True, slots=True)
class Verdict:
    """Messages that are done, those that must come again, and how late."""

    done: list[StoredMessage]
    failed: list[StoredMessage]
    delay_level: int = 0
    pause_ms: int | None = None
    cause: str | None = None
    """What the handler raised, for those who will look at the dead letter."""
    is_error: bool = False
    """Whether the handler failed, rather than asked for the messages again."""
    progress: Progress = Progress.COMMIT
    """What becomes of the messages that are done, and of those kept before them."""


def judge_return(messages: Sequence[StoredMessage], returned: object, handler: Handler) -> Verdict:
    """A handler that returns is done; a number says that only the messages up to that index are."""
    if not handler.auto_commit:
        progress = returned if isinstance(returned, Progress) else Progress.KEEP
        return Verdict(list(messages), [], progress=progress)
    if handler.takes_list and isinstance(returned, int) and not isinstance(returned, bool):
        good = max(0, min(returned + 1, len(messages)))
        return Verdict(list(messages[:good]), list(messages[good:]))
    return Verdict(list(messages), [])


def judge_error(messages: Sequence[StoredMessage], error: Exception, handler: Handler) -> Verdict:
    """A handler that raises wants all its messages again."""
    progress = Progress.COMMIT if handler.auto_commit else Progress.KEEP
    cause = cause_of(error)
    if isinstance(error, RetryLater):
        return Verdict([], list(messages), error.delay_level, error.pause_ms, cause=cause, progress=progress)
    return Verdict([], list(messages), cause=cause, is_error=True, progress=progress)


def cause_of(error: Exception) -> str:
    """Kind and text of an error, short enough to travel with the message."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}"[:CAUSE_CHARACTERS_MAX] if text else type(error).__name__


def chunks_of(
    messages: Sequence[StoredMessage], handler_of: Callable[[str], Handler | None]
) -> list[tuple[Handler | None, list[StoredMessage]]]:
    """Messages cut into what each call gets: of one topic, at most its handler's batch size, in order."""
    chunks: list[tuple[Handler | None, list[StoredMessage]]] = []
    topic: str | None = None
    handler: Handler | None = None
    for message in messages:
        if message.topic != topic:
            topic, handler = message.topic, handler_of(message.topic)
            chunks.append((handler, [message]))
        elif len(chunks[-1][1]) < (handler.batch_size if handler is not None else 1):
            chunks[-1][1].append(message)
        else:
            chunks.append((handler, [message]))
    return chunks
