"""Command: one frame on the wire, a request or a reply."""

from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final

from kappamq.wire.codes import PROTOCOL_VERSION

REPLY_FLAG: Final = 0x1
ONE_WAY_FLAG: Final = 0x2


class HeaderType(IntEnum):
    """How the header of a frame is encoded."""

    JSON = 0
    BINARY = 1


@dataclass(slots=True)
class Command:
    """A decoded frame. `fields` are the command's own header fields, always text."""

    code: int
    request_id: int = 0
    fields: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    flag: int = 0
    remark: str | None = None
    language: str = "PYTHON"
    version: int = PROTOCOL_VERSION
    header_type: int = HeaderType.JSON

    @property
    def is_reply(self) -> bool:
        return bool(self.flag & REPLY_FLAG)

    @property
    def is_one_way(self) -> bool:
        return bool(self.flag & ONE_WAY_FLAG)

    def reply(
        self, code: int = 0, remark: str | None = None, *, fields: dict[str, str] | None = None, body: bytes = b""
    ) -> "Command":
        """Answer to this request, in the header encoding the peer used."""
        return Command(
            code=code,
            request_id=self.request_id,
            fields=fields if fields is not None else {},
            body=body,
            flag=REPLY_FLAG,
            remark=remark,
            header_type=self.header_type,
        )
