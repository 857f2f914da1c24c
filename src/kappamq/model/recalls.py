"""Recall handles: what a producer holds in order to take back a timed message.

URL-safe base64 of `v1 <topic> <broker> <deliver ms> <unique id>`
"""

import base64
from dataclasses import dataclass
from typing import Final

from kappamq.errors import UsageError

HANDLE_CHARACTERS_MAX: Final = 2048

_VERSION: Final = "v1"


@dataclass(frozen=True, slots=True)
class RecallHandle:
    """A timed message, seen from outside."""

    topic: str
    broker: str
    deliver_at_ms: int
    unique_id: str

    def encode(self) -> str:
        text = f"{_VERSION} {self.topic} {self.broker} {self.deliver_at_ms} {self.unique_id}"
        return base64.urlsafe_b64encode(text.encode()).decode()

    @classmethod
    def decode(cls, text: str) -> "RecallHandle":
        """Raises `UsageError` for anything that is not a handle."""
        words = _words(text)
        if len(words) != 5 or words[0] != _VERSION or not words[3].isdecimal():
            raise UsageError(f"recall handle {text[:40]!r} is not valid: pass it as the send receipt gave it")
        _, topic, broker, deliver_at, unique_id = words
        return cls(topic, broker, int(deliver_at), unique_id)


def _words(text: str) -> list[str]:
    if len(text) > HANDLE_CHARACTERS_MAX:
        return []
    try:
        return base64.b64decode(text, altchars=b"-_", validate=True).decode().split(" ")
    except ValueError:
        return []
