"""How often things are done."""

from kappamq.broker.upkeep import held_seconds, rest_seconds
from kappamq.store.store import INDEX_TRUST_MS


def test_entries_of_very_many_queues_wait_longer_up_to_a_limit() -> None:
    assert held_seconds(1) == 0
    assert held_seconds(1000) == 1
    assert held_seconds(6000) == 6
    assert held_seconds(1_000_000) == 10


def test_checkpoints_take_a_small_part_of_the_time_and_never_stay_away() -> None:
    assert rest_seconds(0.01) < 1
    assert rest_seconds(1) == 20
    assert rest_seconds(1000) * 2 * 1000 <= INDEX_TRUST_MS
