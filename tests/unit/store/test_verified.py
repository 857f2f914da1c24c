"""Ranges that were verified."""

from hypothesis import given
from hypothesis import strategies as st

from kappamq.store.verified import RANGES_MAX, VerifiedRanges


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(0, 9)), max_size=30))
def test_ranges_say_what_a_set_says(added: list[tuple[int, int]]) -> None:
    ranges = VerifiedRanges()
    known: set[int] = set()
    for start, count in added:
        ranges.add(start, start + count)
        known.update(range(start, start + count))
    for offset in range(75):
        end = offset
        while end in known:
            end += 1
        assert ranges.end_of(offset) == end


def test_only_so_many_ranges_are_kept_and_the_small_ones_go_first() -> None:
    ranges = VerifiedRanges()
    ranges.add(0, 50)
    for number in range(1, RANGES_MAX + 10):
        ranges.add(100 * number, 100 * number + 2)
    assert ranges.end_of(10) == 50
    kept = [number for number in range(1, RANGES_MAX + 10) if ranges.end_of(100 * number) > 100 * number]
    assert len(kept) == RANGES_MAX - 1
