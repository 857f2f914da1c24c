"""Both kernels keep the same account of the ends of queues."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kappamq.kernel import reference
from kappamq.kernel.reference import QUEUE_ROW, SEND_ROW
from kappamq.kernel.targets_reference import HELD_BYTES_MAX, NONE_HELD, UNIT_BYTES
from tests.contract.kernel_traffic import with_queues
from tests.contract.test_kernel import outcome

compiled = pytest.importorskip("kappamq.kernel._compiled", reason="the compiled kernel is not built")
KERNELS = pytest.mark.parametrize("kernel", [reference, compiled], ids=["reference", "compiled"])
NAMES = [(b"a", 0), (b"a", 1), (b"topic-with-a-long-name", 0), ("日本".encode(), 7)]


def row(target: int, count: int, start: int, *, sends: int = 1, size: int = 100) -> bytes:
    return QUEUE_ROW.pack(target, count, sends, start, size)


def state(tail: Any) -> tuple[Any, ...]:
    return tail.next, tail.end, tail.tail, tail.log_end, tail.is_deleted, tail.is_holding, tail.first_held, tail.held()


ROWS = st.builds(
    row,
    st.integers(0, len(NAMES)),
    st.integers(0, 3) | st.just(200),
    st.integers(0, 30),
    sends=st.integers(0, 3),
    size=st.integers(0, 1 << 40),
)
STEPS = st.lists(
    st.tuples(st.sampled_from(("hold", "here", "here", "here", "count", "take back")), st.lists(ROWS, max_size=4))
    | st.tuples(st.sampled_from(("drop", "delete", "settle", "note", "stored")), st.integers(0, len(NAMES) - 1)),
    max_size=30,
)


def step(targets: Any, action: str, what: Any) -> Any:
    """One thing that may happen to a table; what came of it."""
    tail = targets.tail_of(what) if isinstance(what, int) else None
    if tail is None:
        rows = b"".join(what)
        units = bytes(sum([found[1] for found in QUEUE_ROW.iter_unpack(rows)]) * UNIT_BYTES)
        if action == "take back":
            return targets.take_back(rows)
        if action == "count":
            return targets.count(rows)
        if action == "here":  # Where the queues end just now, as it is nearly always.
            found = [list(QUEUE_ROW.unpack(packed)) for packed in what]
            ends = {values[0]: targets.tail_of(values[0]).end for values in found}
            for values in found:
                values[3] = ends[values[0]]
                ends[values[0]] += values[1]
            rows = b"".join([QUEUE_ROW.pack(*values) for values in found])
        fresh, left = targets.hold(rows, units, 1 << 40)
        return [targets_of(targets).index(tail) for tail in fresh], left
    if action == "drop":
        tail.drop_held()
    elif action == "delete":
        tail.is_deleted = True
    elif action == "settle":
        tail.end, tail.tail = 5, 9
    elif action == "note":
        tail.is_holding = False
    return targets.take_stored()


def targets_of(targets: Any) -> list[Any]:
    return [targets.tail_of(number) for number in range(len(targets))]


@settings(deadline=None)
@given(STEPS)
def test_the_same_happens_to_both(steps: list[tuple[str, Any]]) -> None:
    mine, theirs = with_queues(compiled, NAMES), with_queues(reference, NAMES)
    for action, what in steps:
        found = [outcome(step, targets, action, what) for targets in (mine, theirs)]
        assert found[0] == found[1], (action, what)
        assert [state(tail) for tail in targets_of(mine)] == [state(tail) for tail in targets_of(theirs)]


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.binary(max_size=20) | st.sampled_from((b"t", b"u")), st.integers(0, 3)), max_size=80),
    st.lists(st.integers(0, 90), max_size=10),
)
def test_names_are_found_again(names: list[tuple[bytes, int]], named: list[int]) -> None:
    mine, theirs = compiled.Targets(), reference.Targets()
    for name in names:
        assert mine.has(*name) == theirs.has(*name)
        assert outcome(mine.number_of, *name) == outcome(theirs.number_of, *name)
    assert list(mine) == list(theirs)
    assert [mine.number_of(*name) for name in mine] == list(range(len(mine)))
    assert [mine.name_of(number) for number in range(len(mine))] == list(theirs)
    rows = b"".join([SEND_ROW.pack(target, *[0] * 16) for target in named])
    for targets, kernel in ((mine, compiled), (theirs, reference)):
        for number in range(0, len(targets), 2):
            targets.set_tail(number, kernel.QueueTail())
        if targets:
            targets.tail_of(0).is_deleted = True
    assert mine.lost(rows) == theirs.lost(rows)


@KERNELS
def test_held_entries_are_read_in_part(kernel: Any) -> None:
    tail = kernel.QueueTail()
    tail.end = tail.tail = 3
    assert tail.held_part(0, 5) == (NONE_HELD, b"")
    units = bytes(range(60))
    assert tail.hold(units[:20], 7)
    assert tail.hold(units[20:], 9)
    assert state(tail) == (0, 6, 6, 9, False, False, 3, units)
    for start in range(8):
        for count in range(8):
            wanted = units[max(0, start - 3) * UNIT_BYTES : max(0, start + count - 3) * UNIT_BYTES]
            assert tail.held_part(start, count) == (3, wanted)
    tail.drop_held()
    assert (tail.held(), tail.first_held, tail.end) == (b"", NONE_HELD, 6)


@KERNELS
def test_only_so_much_is_held(kernel: Any) -> None:
    targets = with_queues(kernel, [(b"t", 0)])
    many = HELD_BYTES_MAX // UNIT_BYTES
    assert targets.hold(row(0, many, 0), bytes(many * UNIT_BYTES), 1) == ([targets.tail_of(0)], [])
    assert targets.hold(row(0, 1, many), bytes(UNIT_BYTES), 2) == ([], [0])
    assert (targets.tail_of(0).end, targets.tail_of(0).log_end) == (many, 1)


@KERNELS
def test_what_was_stored_is_told_once(kernel: Any) -> None:
    targets = with_queues(kernel, NAMES)
    assert targets.count(row(2, 3, 0, sends=2, size=50) + row(0, 1, 0, size=7)) == (4, 57, 3)
    assert targets.count(row(2, 1, 3, size=9)) == (1, 9, 1)
    assert targets.take_stored() == [("a", 1, 7, 1), ("topic-with-a-long-name", 4, 59, 3)]
    assert targets.take_stored() == []


@KERNELS
@pytest.mark.parametrize("packed", [b"x", row(9, 0, 0), row(1, 0, 0), row(2**32 - 1, 0, 0)])
def test_rows_name_queues_that_are_there(kernel: Any, packed: bytes) -> None:
    targets = with_queues(kernel, [(b"t", 0)])
    targets.number_of(b"t", 1)  # Without a queue.
    for call in (targets.take_back, targets.count, lambda rows: targets.hold(rows, b"", 0)):
        with pytest.raises(ValueError):
            call(packed)
    with pytest.raises(ValueError):
        targets.hold(row(0, 2, 0), bytes(UNIT_BYTES), 0)
    with pytest.raises(ValueError):
        targets.lost(b"x")
    for number in (-1, 2):
        with pytest.raises(IndexError):
            targets.name_of(number)
        with pytest.raises(ValueError):
            targets.tail_of(number)


@KERNELS
def test_records_that_were_not_written_use_up_no_offset(kernel: Any) -> None:
    targets = with_queues(kernel, [(b"t", 4)])
    targets.tail_of(0).next = 50
    targets.take_back(row(0, 3, 42) + row(0, 5, 45))
    assert targets.tail_of(0).next == 42
