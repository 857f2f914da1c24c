"""Which timed messages may be taken back, and by which name their recall knows them."""

from kappamq.model.properties import Name, property_of
from kappamq.model.recalls import RecallHandle


def recall_handle(topic: str, broker: str, properties_text: str) -> str | None:
    """Handle of a timed message that is about to be stored; `None` for one that is itself a recall."""
    tick = property_of(properties_text, Name.TIMER_OUT_MS)
    unique_id = property_of(properties_text, Name.UNIQUE_ID)
    if tick is None or unique_id is None or property_of(properties_text, Name.TIMER_DELETE_ID) is not None:
        return None
    # RocketMQ: one more than the tick, which rounds down to the same tick again.
    return RecallHandle(topic, broker, int(tick) + 1, unique_id).encode()


def delete_key(topic: str, unique_id: str) -> str:
    """What TIMER_DEL_UNIQKEY holds in stores of RocketMQ 5.3.2 and 5.3.3; others have the unique id alone."""
    return f"{topic}+{unique_id}"
