"""Places of new records."""

import pytest

from kappamq.errors import InvalidMessage
from kappamq.model.message import Flags
from kappamq.model.record import NewRecord, decode_records
from kappamq.store.store import Appended
from tests.faults.records import HOST, commit, fetch_all, new_record, open_store
from tests.faults.simulated_files import SimulatedFileSystem

V6_HOST = bytes(15) + b"\x01\x00\x00\x2a\x9f"


def test_end_of_an_appended_record() -> None:
    assert Appended(100, 50, 7, 0).end == 150


def test_queue_offsets_are_dense_per_queue() -> None:
    store = open_store(SimulatedFileSystem())
    places = store.append([new_record(queue_id=queue_id) for queue_id in (0, 1, 0, 0, 1)])
    assert [place.queue_offset for place in places] == [0, 0, 1, 2, 1]
    assert [place.queue_offset for place in store.append([new_record(queue_id=1), new_record()])] == [2, 3]


def test_prepared_records_take_no_queue_offset() -> None:
    store = open_store(SimulatedFileSystem())
    prepared = NewRecord("orders", 0, b"", b"", 0, HOST, HOST, flags=int(Flags.PREPARED))
    committed = NewRecord("orders", 0, b"", b"", 0, HOST, HOST, flags=int(Flags.COMMITTED))
    places = store.append([new_record(), prepared, committed])
    assert [place.queue_offset for place in places] == [0, 0, 1]
    assert commit(store) == 3
    assert store.max_offset("orders", 0) == 2


def test_flags_say_how_long_the_hosts_are() -> None:
    store = open_store(SimulatedFileSystem())
    store.append(
        [
            NewRecord("orders", 0, b"", b"", 0, V6_HOST, HOST),
            NewRecord("orders", 0, b"", b"", 0, HOST, V6_HOST, flags=int(Flags.BORN_HOST_V6 | Flags.COMPRESSED)),
        ]
    )
    commit(store)
    found = [(message.flags, message.born_host_packed) for message in decode_records(fetch_all(store))]
    assert found == [(0x10, V6_HOST), (0x21, HOST)]


def test_record_larger_than_a_segment() -> None:
    store = open_store(SimulatedFileSystem())
    with pytest.raises(InvalidMessage, match="does not fit a segment"):
        store.append([new_record(b"first"), new_record(b"x" * 8192)])
    assert store.append([new_record(b"first")])[0][:3:2] == (0, 0)


def test_empty_append() -> None:
    store = open_store(SimulatedFileSystem())
    assert store.append([]) == []
    assert store.written == 0
