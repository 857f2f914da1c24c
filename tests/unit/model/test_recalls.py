"""Recall handles."""

import pytest

from kappamq.errors import UsageError
from kappamq.model.recalls import RecallHandle

# The worked example of the client specification.
EXAMPLE = "djEgVG9waWNUZXN0IGJyb2tlci1hIDE3NTgyODE0MDAwMDAgQzBBODAxMEEzMDM5MThCNEFBQzI1RUYzNDBCQjAwMDU="


def test_the_known_handle() -> None:
    handle = RecallHandle.decode(EXAMPLE)
    assert (handle.topic, handle.broker, handle.deliver_at_ms) == ("TopicTest", "broker-a", 1758281400000)
    assert handle.encode() == EXAMPLE


@pytest.mark.parametrize(
    "text", ["", "no base64!", "djIgYSBiIDEgYw==", "djEgYSBiIHggYw==", "djEgYQ==", "////", "====", "ä", "A" * 4096]
)
def test_anything_else_is_refused_without_words_of_ours_that_nobody_understands(text: str) -> None:
    with pytest.raises(UsageError, match=r"^recall handle .* is not valid: pass it as the send receipt gave it$"):
        RecallHandle.decode(text)
