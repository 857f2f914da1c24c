"""Recall handles: what a producer holds in order to take back a timed message.

URL-safe base64 of `v1 <topic> <broker> <deliver ms> <unique id>`
"""

import base64
import binascii
from dataclasses import dataclass

from kappamq.errors import UsageError
from kappamq.model.properties import Name, property_of

HANDLE_CHARACTERS_MAX = 2048


@dataclass(frozen=True, slots=True)
class RecallHandle:
    """A timed message, seen from outside."""

    topic: str
    broker: str
    deliver_at_ms: int
    unique_id: str

    def encode(self) -> str:
        text = f"v1 {self.topic} {self.broker} {self.deliver_at_ms} {self.unique_id}"
        return base64.urlsafe_b64encode(text.encode()).decode()

    @classmethod
    def decode(cls, text: str) -> "RecallHandle":
        """Raises `UsageError` for anything that is not a handle."""
        try:
            if len(text) > HANDLE_CHARACTERS_MAX:
                raise ValueError("it is too long")
            words = base64.b64decode(text, altchars=b"-_", validate=True).decode().split(" ")
            version, topic, broker, deliver_at, unique_id = words
            if version != "v1" or not deliver_at.isdecimal():
                raise ValueError("it is of another kind")
            return cls(topic, broker, int(deliver_at), unique_id)
        except (ValueError, binascii.Error) as fault:
            raise UsageError(f"the recall handle is not valid ({fault}): pass it as the send receipt gave it") from None


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
