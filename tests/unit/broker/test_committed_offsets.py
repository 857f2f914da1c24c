"""Progress of groups."""

from kappamq.broker.committed_offsets import CommittedOffsets
from kappamq.clock import ManualClock


def make() -> CommittedOffsets:
    return CommittedOffsets(clock=ManualClock())


def test_the_last_commit_wins_in_both_directions() -> None:
    offsets = make()
    assert offsets.find("t", "g", 0) is None
    offsets.commit("t", "g", 0, 10)
    offsets.commit("t", "g", 0, 4)
    assert offsets.find("t", "g", 0) == 4
    assert offsets.of("t", "g") == {0: 4}


def test_a_reset_holds_against_late_commits_until_it_is_taken() -> None:
    offsets = make()
    offsets.commit("t", "g", 0, 10)
    offsets.reset("t", "g", 0, 3)
    offsets.commit("t", "g", 0, 11)
    assert offsets.find("t", "g", 0) == 3
    offsets.commit("t", "g", 1, 7)
    assert offsets.find("t", "g", 1) == 7
    assert offsets.take_reset("t", "g", 0) == 3
    assert offsets.take_reset("t", "g", 0) is None
    offsets.commit("t", "g", 0, 5)
    assert offsets.find("t", "g", 0) == 5


def test_file_form_reads_back_and_accepts_quoted_queue_ids() -> None:
    offsets = make()
    offsets.commit("%RETRY%g", "g", 0, 1)
    offsets.commit("t", "g", 3, 9)
    again = make()
    again.load(offsets.as_file())
    assert again.of("t", "g") == {3: 9}
    again.load({"offsetTable": {"t@h": {"0": 5, 1: 6}, "nonsense": {}}})
    assert again.of("t", "h") == {0: 5, 1: 6}
    assert sorted(again.groups_of("t")) == ["g", "h"]
    assert sorted(again.topics_of("g")) == ["%RETRY%g", "t"]


def test_cloning_and_forgetting() -> None:
    offsets = make()
    offsets.commit("t", "g", 0, 5)
    offsets.commit("u", "g", 0, 6)
    offsets.clone("g", "copy", "t")
    assert (offsets.of("t", "copy"), offsets.of("u", "copy")) == ({0: 5}, {})
    offsets.forget_topic("t")
    assert offsets.of("t", "copy") == {}
    offsets.forget_group("g")
    assert offsets.of("u", "g") == {}
