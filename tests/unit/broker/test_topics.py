"""Topic table."""

import pytest

from kappamq.broker.topics import BuiltInTopics, Topics
from kappamq.clock import ManualClock
from kappamq.errors import InvalidName, NotPermitted, Refused, TopicNotFound, UsageError
from kappamq.model.config import TopicConfig


def make(*, auto_create: bool = True) -> tuple[Topics, list[int]]:
    changes: list[int] = []
    built_in = BuiltInTopics(
        cluster="C", broker="b", template_queues=8, auto_create=auto_create, delay_levels=18, trace_topic=None
    )
    topics = Topics(built_in, clock=ManualClock(), on_change=lambda: changes.append(1))
    topics.load(None, [])
    return topics, changes


def test_every_broker_has_its_own_topics() -> None:
    topics, _ = make()
    for name, queues in (("TBW102", 8), ("BenchmarkTest", 1024), ("C", 16), ("b", 1), ("SCHEDULE_TOPIC_XXXX", 18)):
        assert topics.get(name).write_queue_nums == queues
        assert topics.is_system(name)
    assert not topics.is_system("orders")


def test_the_first_send_creates_from_the_template() -> None:
    topics, changes = make()
    before = topics.version
    topic = topics.for_send("orders", template="TBW102", queues=4)
    assert (topic.read_queue_nums, topic.write_queue_nums, topic.perm) == (4, 4, 6)
    assert topics.for_send("many", template="TBW102", queues=99).write_queue_nums == 8
    assert len(changes) == 2
    assert topics.version != before
    assert topics.for_send("orders", template="TBW102", queues=4) is topic
    assert len(changes) == 2


def test_without_a_template_only_retry_topics_are_made() -> None:
    topics, _ = make(auto_create=False)
    with pytest.raises(TopicNotFound):
        topics.for_send("orders", template="TBW102", queues=4)
    assert topics.for_send("%RETRY%g", template="TBW102", queues=4).write_queue_nums == 1


@pytest.mark.parametrize("name", ["a/b", "..", "", "x" * 128, "ümlaut", "nul\x00"])
def test_bad_names_are_refused(name: str) -> None:
    topics, changes = make()
    with pytest.raises(InvalidName):
        topics.for_send(name, template="TBW102", queues=4)
    assert not changes


@pytest.mark.parametrize(
    "changes",
    [
        {"read_queue_nums": -1},
        {"write_queue_nums": 10**6},
        {"read_queue_nums": 0, "write_queue_nums": 0},
        {"perm": 99},
        {"topic_name": "TBW102"},
        {"attributes": {"queue.type": "BatchCQ"}},
    ],
    ids=str,
)
def test_impossible_topics_are_refused(changes: dict[str, object]) -> None:
    topics, _ = make()
    values: dict[str, object] = {"topic_name": "new", "read_queue_nums": 4, "write_queue_nums": 4} | changes
    with pytest.raises(UsageError):
        topics.put(TopicConfig(**values))  # type: ignore[arg-type]


def test_reading_needs_permission_and_an_existing_queue() -> None:
    topics, _ = make()
    topics.put(TopicConfig(topic_name="dark", perm=2, read_queue_nums=4, write_queue_nums=4))
    topics.put(TopicConfig(topic_name="open", read_queue_nums=2, write_queue_nums=4))
    with pytest.raises(NotPermitted):
        topics.check_queue(topics.get("dark"), 0)
    topics.check_queue(topics.get("open"), 1)
    for queue_id in (2, -1):
        with pytest.raises(Refused, match="queueId"):
            topics.check_queue(topics.get("open"), queue_id)


def test_the_file_reads_back_and_topics_of_the_store_are_never_forgotten() -> None:
    topics, _ = make()
    topics.put(TopicConfig(topic_name="orders", read_queue_nums=2, write_queue_nums=2, attributes={"k": "v"}))
    again, _ = make()
    again.load(
        {"dataVersion": {"counter": 7}, "topicConfigTable": {"orders": {"topicName": "orders", "readQueueNums": 2}}},
        [("orders", 5), ("lost", 2)],
    )
    assert again.get("orders").read_queue_nums == 2
    assert again.get("lost").write_queue_nums == 3
    assert again.version.counter == 8


def test_deleting() -> None:
    topics, changes = make()
    topics.put(TopicConfig(topic_name="orders"))
    assert topics.remove("orders")
    assert not topics.remove("orders")
    assert len(changes) == 2
    with pytest.raises(UsageError):
        topics.remove("TBW102")
