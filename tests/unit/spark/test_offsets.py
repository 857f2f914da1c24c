import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kappamq.errors import UsageError
from kappamq.model.message import Queue
from kappamq.spark.offsets import describe, from_checkpoint, to_checkpoint

queues = st.builds(Queue, st.sampled_from(["a", "b"]), st.sampled_from(["x", "y"]), st.integers(0, 40))


@given(st.dictionaries(queues, st.integers(0, 2**62)))
def test_checkpoints_round_trip_through_json(offsets: dict[Queue, int]) -> None:
    assert from_checkpoint(json.loads(json.dumps(to_checkpoint(offsets)))) == offsets


def test_equal_offsets_have_equal_text() -> None:
    one, two = Queue("a", "x", 10), Queue("a", "x", 9)
    assert json.dumps(to_checkpoint({one: 1, two: 2})) == json.dumps(to_checkpoint({two: 2, one: 1}))


def test_checkpoints_of_others_are_refused() -> None:
    for data in ({"v": 2, "q": {}}, {"orders": {"0": 1}}, {"v": 1}):
        with pytest.raises(UsageError, match="checkpoint directory of its own"):
            from_checkpoint(data)


def test_long_lists_are_shortened() -> None:
    assert describe([Queue("t", "b", n) for n in range(8)]).endswith("t/b/4 and 3 more")
