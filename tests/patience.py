"""How long tests wait for an answer. What is sent again because it came late comes twice, and tests count."""

from typing import Final

from kappamq.client.settings import ProducerSettings

SEND_MS: Final = 60_000
PATIENT: Final = ProducerSettings(send_timeout_ms=SEND_MS)
