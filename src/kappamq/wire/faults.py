"""Errors and response codes: one table, used by servers to answer and by clients to raise."""

from typing import Final

from kappamq.errors import (
    Busy,
    ConfigError,
    DiskFull,
    GroupNotFound,
    InvalidExpression,
    InvalidMessage,
    InvalidName,
    KappaError,
    NotFound,
    NotPermitted,
    OffsetOutOfRange,
    Refused,
    RemoteProtocolError,
    ServiceUnavailable,
    StorageError,
    TopicNotFound,
    UsageError,
)
from kappamq.wire.codes import ResponseCode
from kappamq.wire.command import Command

CODE_BY_ERROR: Final[dict[type[KappaError], ResponseCode]] = {
    TopicNotFound: ResponseCode.TOPIC_NOT_EXIST,
    GroupNotFound: ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
    NotPermitted: ResponseCode.NO_PERMISSION,
    Busy: ResponseCode.SYSTEM_BUSY,
    ServiceUnavailable: ResponseCode.SERVICE_NOT_AVAILABLE,
    NotFound: ResponseCode.QUERY_NOT_FOUND,
    DiskFull: ResponseCode.SERVICE_NOT_AVAILABLE,
    InvalidMessage: ResponseCode.MESSAGE_ILLEGAL,
    InvalidExpression: ResponseCode.SUBSCRIPTION_PARSE_FAILED,
    InvalidName: ResponseCode.INVALID_PARAMETER,
    UsageError: ResponseCode.INVALID_PARAMETER,
    ConfigError: ResponseCode.INVALID_PARAMETER,
    RemoteProtocolError: ResponseCode.SYSTEM_ERROR,
    OffsetOutOfRange: ResponseCode.SYSTEM_ERROR,
    StorageError: ResponseCode.SYSTEM_ERROR,
}
"""Code that a server answers for an error; the nearest ancestor in the tree decides."""

ERROR_BY_CODE: Final[dict[int, type[Refused]]] = {
    ResponseCode.TOPIC_NOT_EXIST: TopicNotFound,
    ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST: GroupNotFound,
    ResponseCode.NO_PERMISSION: NotPermitted,
    ResponseCode.SYSTEM_BUSY: Busy,
    ResponseCode.FLOW_CONTROL: Busy,
    ResponseCode.SERVICE_NOT_AVAILABLE: ServiceUnavailable,
    ResponseCode.QUERY_NOT_FOUND: NotFound,
    ResponseCode.NO_MESSAGE: NotFound,
    ResponseCode.CONSUMER_NOT_ONLINE: NotFound,
}
"""Error that a client raises for a code; any other code raises `Refused`."""


def code_of(error: KappaError) -> int:
    """Response code that tells a peer of `error`."""
    if isinstance(error, Refused) and type(error) is Refused:
        return error.code
    for kind in type(error).__mro__:
        code = CODE_BY_ERROR.get(kind)
        if code is not None:
            return code
    return ResponseCode.SYSTEM_ERROR


def error_of(reply: Command, address: str) -> Refused:
    """Error that a reply with a failure code stands for."""
    remark = reply.remark or "no reason given"
    kind = ERROR_BY_CODE.get(reply.code, Refused)
    return kind(f"CODE: {reply.code}  DESC: {remark} BROKER: {address}", code=reply.code, address=address)
