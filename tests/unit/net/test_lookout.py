"""When a broker looks for the next request instead of sleeping at once."""

import pytest

from kappamq.net.lookout import LOOK_MICROSECONDS, TURNS_MIN, Lookout


def after_singles(lookout: Lookout, count: int) -> int:
    for _ in range(count):
        lookout.found(is_single=True)
    return lookout.microseconds


def test_looks_after_many_single_requests_only() -> None:
    lookout = Lookout()
    assert after_singles(lookout, TURNS_MIN - 1) == 0
    assert after_singles(lookout, 1) == LOOK_MICROSECONDS
    assert after_singles(lookout, 1000) == LOOK_MICROSECONDS
    lookout.found(is_single=False)
    assert after_singles(lookout, TURNS_MIN - 1) == 0


@pytest.mark.parametrize("misses", [1, 2, 5])
def test_each_miss_doubles_the_turns_before_the_next_look(misses: int) -> None:
    lookout = Lookout()
    for number in range(misses):
        assert after_singles(lookout, TURNS_MIN * 2**number) == LOOK_MICROSECONDS
        lookout.missed()
    assert after_singles(lookout, TURNS_MIN * 2**misses - 1) == 0
    assert after_singles(lookout, 1) == LOOK_MICROSECONDS


def test_a_hit_makes_up_for_misses() -> None:
    lookout = Lookout()
    for number in range(3):
        after_singles(lookout, TURNS_MIN * 2**number)
        lookout.missed()
    after_singles(lookout, TURNS_MIN * 8 + 1)  # The last one was found by looking.
    lookout.missed()
    assert after_singles(lookout, TURNS_MIN * 2) == LOOK_MICROSECONDS
