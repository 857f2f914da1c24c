"""What the outcome of a handler means."""

from __future__ import annotations

import pytest

from kappamq.client.core.handling import Handler, Progress, RetryLater, chunks_of, judge_error, judge_return
from kappamq.errors import UsageError
from kappamq.model.message import StoredMessage


def message(topic: str, offset: int) -> StoredMessage:
    return StoredMessage(topic, b"x", 0, offset, 0, 0, 0, 0, b"", 0, b"", 0, 0, "", 0, 0)


MESSAGES = [message("a", offset) for offset in range(4)]
LISTS = Handler(print, 4, takes_list=True)
BY_HAND = Handler(print, 4, takes_list=True, auto_commit=False)


@pytest.mark.parametrize(
    ("returned", "good"), [(None, 4), (1, 2), (-1, 0), (99, 4), (True, 4), (False, 4), ("text", 4), (3, 4)]
)
def test_a_returned_index_parts_good_from_bad(returned: object, good: int) -> None:
    verdict = judge_return(MESSAGES, returned, LISTS)
    assert (verdict.done, verdict.failed) == (MESSAGES[:good], MESSAGES[good:])


def test_a_number_from_a_handler_of_single_messages_means_nothing() -> None:
    assert judge_return(MESSAGES[:1], -1, Handler(print)).done == MESSAGES[:1]


@pytest.mark.parametrize(
    ("returned", "progress"),
    [
        (None, Progress.KEEP),
        (0, Progress.KEEP),
        (Progress.KEEP, Progress.KEEP),
        (Progress.COMMIT, Progress.COMMIT),
        (Progress.ROLLBACK, Progress.ROLLBACK),
    ],
)
def test_a_handler_that_commits_by_itself_says_so(returned: object, progress: Progress) -> None:
    verdict = judge_return(MESSAGES, returned, BY_HAND)
    assert (verdict.done, verdict.failed, verdict.progress) == (MESSAGES, [], progress)
    assert judge_error(MESSAGES, ValueError(), BY_HAND).progress is Progress.KEEP
    assert judge_return(MESSAGES, returned, LISTS).progress is Progress.COMMIT


def test_errors_fail_everything_and_may_say_when() -> None:
    assert judge_error(MESSAGES, ValueError(), LISTS).failed == MESSAGES
    verdict = judge_error(MESSAGES, RetryLater("later", delay_level=5, pause_ms=10), LISTS)
    assert (verdict.delay_level, verdict.pause_ms) == (5, 10)


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        (ValueError("no  such\norder"), "ValueError: no such order"),
        (KeyError(), "KeyError"),
        (RetryLater("later"), "RetryLater: later"),
        (ValueError("x" * 1000), "ValueError: " + "x" * 488),
    ],
)
def test_the_cause_of_a_failure_is_one_short_line(error: Exception, cause: str) -> None:
    assert judge_error(MESSAGES, error, LISTS).cause == cause


def test_chunks_hold_one_topic_and_keep_the_order() -> None:
    handlers = {"a": Handler(print, 2, takes_list=True), "b": Handler(print)}
    messages = [message(topic, offset) for offset, topic in enumerate("aaabbca")]
    chunks = chunks_of(messages, handlers.get)
    assert [[each.queue_offset for each in chunk] for _, chunk in chunks] == [[0, 1], [2], [3], [4], [5], [6]]
    assert [handler for handler, _ in chunks][3:5] == [handlers["b"], None]


def test_a_handler_gets_a_message_or_a_list() -> None:
    assert Handler(print).argument(MESSAGES[:1]) is MESSAGES[0]
    assert Handler(print, 4, takes_list=True).argument(MESSAGES) == MESSAGES
    with pytest.raises(UsageError):
        Handler(print, 0)
