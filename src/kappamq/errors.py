"""The one exception tree, cut by what the caller can do about it.

KappaError
├── ConfigError             fix the settings
├── UsageError              fix the call
│   ├── InvalidName         … the name of a topic or group
│   ├── InvalidMessage      … the message (size, properties, batch)
│   └── InvalidExpression   … the tag or SQL expression
├── TransportError          try again, perhaps elsewhere
│   ├── ConnectFailed
│   ├── ConnectionLost
│   ├── CallTimeout
│   └── TooManyInFlight
├── LocalProtocolError      our fault: we were about to break the protocol
├── RemoteProtocolError     the peer's fault: it broke the protocol
├── Refused                 the server understood and said no (carries its response code)
│   ├── Busy                … try again after a while
│   ├── TopicNotFound
│   ├── GroupNotFound
│   ├── NotPermitted
│   ├── ServiceUnavailable
│   └── NotFound            … no such message, offset or consumer
└── StorageError            the disk or the files on it
    ├── CorruptRecord
    ├── DiskFull
    ├── OffsetOutOfRange
    └── StoreLocked
"""

from typing import ClassVar


class KappaError(Exception):
    """Base of everything KappaMQ raises on purpose."""

    retryable: ClassVar[bool] = False


class ConfigError(KappaError):
    """A setting is missing, unknown or out of range."""


class UsageError(KappaError):
    """The call cannot work as written."""


class InvalidName(UsageError):
    """A topic or group name breaks the naming rules."""


class InvalidMessage(UsageError):
    """A message breaks a size or content rule."""


class InvalidExpression(UsageError):
    """A tag or SQL expression does not parse."""

    def __init__(self, message: str, *, position: int | None = None) -> None:
        super().__init__(message)
        self.position = position


class TransportError(KappaError):
    """Bytes did not get through; the outcome of the call is unknown unless a subclass says otherwise."""

    retryable = True


class ConnectFailed(TransportError):
    """No connection could be made: nothing was sent."""


class ConnectionLost(TransportError):
    """The connection closed before the reply came."""


class CallTimeout(TransportError):
    """No reply within the deadline."""


class TooManyInFlight(TransportError):
    """The limit of outstanding requests is reached: nothing was sent."""


class LocalProtocolError(KappaError):
    """We were about to send something the protocol forbids."""


class RemoteProtocolError(KappaError):
    """The peer sent something the protocol forbids."""


class Refused(KappaError):
    """The server answered with an error code."""

    def __init__(self, message: str, *, code: int = 1, address: str | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.address = address


class Busy(Refused):
    """The server is overloaded and asks to be left alone for a while."""

    retryable = True


class TopicNotFound(Refused):
    """The topic does not exist there."""

    retryable = True


class GroupNotFound(Refused):
    """The consumer group does not exist there."""


class NotPermitted(Refused):
    """The operation is forbidden for this topic, group or broker."""

    retryable = True


class ServiceUnavailable(Refused):
    """The server cannot take writes now: disk full, shutting down, or a slave."""

    retryable = True


class NotFound(Refused):
    """There is no such message, offset or online consumer."""


class StorageError(KappaError):
    """The disk failed us, or the files are not what they should be."""


class CorruptRecord(StorageError):
    """Bytes of the log are not a valid record."""

    def __init__(self, message: str, *, log_offset: int) -> None:
        super().__init__(message)
        self.log_offset = log_offset


class DiskFull(StorageError):
    """No space left: writes are refused until space is freed."""

    retryable = True


class OffsetOutOfRange(StorageError):
    """The offset lies outside of what is stored."""


class StoreLocked(StorageError):
    """Another process uses this store directory."""
