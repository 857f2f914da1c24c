"""Both verifiers find the same records valid, and the same ranges of the log."""

import random
from mmap import mmap

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kappamq.kernel import verify_reference as reference
from kappamq.model.record import NewRecord
from tests.contract.test_kernel import outcome
from tests.fuzz.verify_input import UNIT, Log, Logs, difference, entries_of

compiled = pytest.importorskip("kappamq.kernel._verify", reason="the compiled verifier is not built")


def test_both_are_of_one_interface() -> None:
    assert compiled.INTERFACE == reference.INTERFACE


@given(st.integers(0, 2**32))
def test_spoiled_logs(seed: int) -> None:
    logs = Logs(random.Random(seed))
    for _ in range(5):
        log = logs.next()
        assert difference(log) is None, log


@given(
    st.lists(
        st.tuples(st.integers(-(2**63), 2**63 - 1) | st.integers(0, 900), st.integers(-(2**31), 2**31 - 1))
        | st.tuples(st.integers(0, 900), st.integers(1, 90)),
        max_size=12,
    ),
    st.integers(-(2**63), 2**63 - 1) | st.integers(0, 900),
    st.integers(-(2**63), 2**63 - 1) | st.integers(0, 2000),
    st.integers(0, 300),
    st.integers(0, 2**31),
)
def test_runs(entries: list[tuple[int, int]], start: int, end: int, gap: int, most: int) -> None:
    units = b"".join([UNIT.pack(log_offset, size, 0) for log_offset, size in entries])
    arguments = {"start": start, "end": end, "gap_bytes": gap, "run_bytes_max": most}
    assert compiled.record_runs(units, **arguments) == reference.record_runs(units, **arguments)


def test_sound_records_are_verified_from_a_map_also_behind_each_other() -> None:
    log = Logs(random.Random(3)).sound(count=50, start=4096)
    mapped = mmap(-1, 1 << 16)
    mapped[: len(log.data)] = log.data
    for kernel in (compiled, reference):
        for first in (0, 17):
            found = kernel.verify_entries(
                entries_of(log)[first * UNIT.size :],
                mapped,
                start=4096,
                end=4096 + len(log.data),
                topic=b"orders",
                queue_id=3,
                queue_offset=first,
            )
            assert found == 50 - first


@pytest.mark.parametrize(
    "change", [{"topic": b"others"}, {"topic": b"order"}, {"queue_id": 4}, {"queue_offset": 1}, {"end": 4097}]
)
def test_records_of_another_place_are_not_taken(change: dict[str, object]) -> None:
    log = Logs(random.Random(3)).sound(count=5, start=4096)
    place = {"start": 4096, "end": 1 << 40, "topic": b"orders", "queue_id": 3, "queue_offset": 0} | change
    for kernel in (compiled, reference):
        assert kernel.verify_entries(entries_of(log), log.data, **place) == 0


def test_units_that_are_cut_short() -> None:
    place = {"start": 0, "end": 9, "topic": b"", "queue_id": 0, "queue_offset": 0}
    limits = {"start": 0, "end": 9, "gap_bytes": 1, "run_bytes_max": 1}
    for kernel in (compiled, reference):
        assert outcome(kernel.verify_entries, b"x" * 21, b"", **place) == ("raised", ValueError)
        assert outcome(kernel.record_runs, b"x" * 19, **limits) == ("raised", ValueError)


def test_every_single_byte_counts() -> None:
    record = NewRecord("orders", 3, b"body", b"TAGS\x01a\x02", 1, bytes(8), bytes(8))
    data = record.encode(queue_offset=0, log_offset=0, stored_at_ms=1, append_crc=True)
    for at in range(len(data)):
        spoiled = bytearray(data)
        spoiled[at] ^= 0x55
        log = Log(bytes(spoiled), 0, ((0, len(data)),))
        assert difference(log) is None
        assert compiled.valid_size(bytes(spoiled), 0, len(data), 0, crc_from=0) == 0, at
    assert compiled.valid_size(data, 0, len(data), 0) == len(data)
