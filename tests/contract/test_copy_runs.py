"""Copies that are packed leave the same log, queues and index behind as those stored one by one."""

from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kappamq.broker.copy_runs import pack_copies
from kappamq.clock import ManualClock
from kappamq.kernel import reference
from kappamq.model.names import TIMER_TOPIC
from kappamq.model.record import NewRecord
from kappamq.store.check import check_store
from kappamq.store.store import Store
from tests.contract.kernel_traffic import with_queues
from tests.contract.test_kernel import outcome
from tests.faults.records import small_settings

HOST = bytes((127, 0, 0, 1, 0, 0, 42, 159))
OTHER_HOST = bytes((10, 0, 0, 1, 0, 0, 42, 159))
CRC = b"__CRC32#\x010123456789\x02"

NAMES = st.sampled_from(["UNIQ_KEY", "KEYS", "TAGS", "XKEYS", "DELAY", "REAL_TOPIC", "REAL_QID", "é"])
VALUES = st.sampled_from(["", "a", "k1 k2", "k  k", "日本", "TAGS", "x" * 50])


@st.composite
def records(draw: st.DrawFn) -> NewRecord:
    properties = draw(st.lists(st.tuples(NAMES, VALUES), max_size=5))
    pieces = [f"{name}\x01{value}\x02".encode() for name, value in properties]
    pieces.insert(draw(st.integers(0, len(pieces))), draw(st.sampled_from([b"", CRC, CRC[:-4] + b"\x02"])))
    text = b"".join(pieces)
    text += draw(st.sampled_from([b"", b"", b"KEYS\x01last", b"no separator"]))
    return NewRecord(
        draw(st.sampled_from(["orders", "%RETRY%g"])),
        draw(st.integers(0, 2)),
        draw(st.binary(max_size=300)),
        text + draw(st.sampled_from([b"", CRC])) if not text or text.endswith(b"\x02") else text,
        draw(st.integers(0, 2**62)),
        draw(st.sampled_from([HOST, HOST, OTHER_HOST])),
        HOST,
        flag=draw(st.integers(-5, 5)),
        flags=draw(st.sampled_from([0, 0, 1])),
        retry_count=draw(st.integers(0, 3)),
        prepared_offset=draw(st.integers(0, 2**62)),
    )


def contents(copies: list[NewRecord], *, is_packed: bool) -> dict[str, bytes]:
    with TemporaryDirectory() as name:
        root = Path(name)
        chosen = small_settings(visible="written")
        store = Store.open(root, chosen, clock=ManualClock())
        if is_packed:
            run = pack_copies(copies, body_bytes_max=10_000)
            assert run is not None
            store.append_run(run)
        else:
            store.append(copies)
        store.publish()
        store.close()
        assert not check_store(root, chosen).violations
        return {
            str(path.relative_to(root)): path.read_bytes()
            for folder in ("commitlog", "consumequeue", "index")
            for path in sorted((root / folder).rglob("*"))
            if path.is_file()
        }


@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None, max_examples=100)
@given(st.lists(records(), min_size=1, max_size=40))
def test_same_files(copies: list[NewRecord]) -> None:
    plain = [copy for copy in copies if pack_copies([copy], body_bytes_max=10_000) is not None]
    if plain:
        assert contents(plain, is_packed=True) == contents(plain, is_packed=False)


def plain(**changes: object) -> NewRecord:
    values: dict[str, object] = {
        "topic": "orders",
        "queue_id": 0,
        "body": b"body",
        "properties": b"KEYS\x01a\x02TAGS\x01t\x02" + CRC,
        "born_at_ms": 1,
        "born_host": HOST,
        "store_host": HOST,
    }
    return NewRecord(**(values | changes))  # type: ignore[arg-type]


def test_what_is_not_plain_is_left_alone() -> None:
    assert pack_copies([plain()], body_bytes_max=4) is not None
    timed = plain(properties=b"KEYS\x01a\x02" + CRC + b"TIMER_ENQUEUE_MS\x011\x02")
    assert pack_copies([timed], body_bytes_max=4) is not None
    unusual: list[dict[str, object]] = [
        {"body": b"large"},
        {"topic": TIMER_TOPIC},
        {"flags": 8},
        {"store_host": OTHER_HOST},
        {"born_host": bytes(20)},
        {"properties": b"KEYS\x01a\x02KEYS\x01b\x02"},
        {"properties": b"KEYS\x01\x02"},
        {"properties": CRC + b"KEYS\x01a\x02" + CRC},
        {"properties": CRC[:-4] + b"\x02KEYS\x01a\x02"},
        {"properties": b"KEYS\x01a" + CRC},
        {"properties": b"x" * 32_760},
    ]
    for changes in unusual:
        assert pack_copies([plain(), plain(**changes)], body_bytes_max=4) is None, changes


@given(st.lists(records(), min_size=1, max_size=12), st.integers(0, 3), st.integers(0, 4000))
def test_both_kernels_name_the_same_records(copies: list[NewRecord], first: int, room: int) -> None:
    compiled = pytest.importorskip("kappamq.kernel._compiled", reason="the compiled kernel is not built")
    run = pack_copies(copies, body_bytes_max=10_000)
    if run is None or first > len(copies):
        return
    names = list(run.targets)
    for prepared in (run.prepared, b"", run.prepared + bytes(8)):
        found = [
            outcome(
                kernel.place_sends,
                run.rows,
                run.texts,
                run.sources,
                with_queues(kernel, names),
                first=first,
                log_offset=4096,
                room=room,
                stored_at_ms=5,
                store_host=run.store_host,
                append_crc=True,
                prepared=prepared,
            )
            for kernel in (compiled, reference)
        ]
        assert found[0] == found[1]
