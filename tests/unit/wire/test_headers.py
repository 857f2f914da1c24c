"""Fields of requests and replies."""

import pytest

from kappamq.errors import RemoteProtocolError
from kappamq.wire.headers import SendReply, decode_fields, decode_send_reply


def test_a_send_reply_is_read_as_any_other() -> None:
    whole = {
        "msgId": "ID",
        "queueId": "3",
        "queueOffset": "77",
        "transactionId": "T",
        "MSG_REGION": "here",
        "TRACE_ON": "false",
        "recallHandle": "R",
        "unknown": "x",
    }
    short = {name: whole[name] for name in ("msgId", "queueId", "queueOffset")}
    for fields in (whole, short):
        assert decode_send_reply(fields) == decode_fields(fields, SendReply)
    for name in short:
        with pytest.raises(RemoteProtocolError, match=name):
            decode_send_reply({key: value for key, value in short.items() if key != name})
    with pytest.raises(RemoteProtocolError, match="queueOffset"):
        decode_send_reply({**short, "queueOffset": "many"})
