"""How things stand with one connection, where compiled code can see it: turns ask it of many connections at once."""

import os
from typing import TYPE_CHECKING, Final

_INTERFACE: Final = 4

try:
    from kappamq.net import _sockets
except ImportError:
    IS_COMPILED = False
else:
    # Not from older sources, and not where plain Python was asked for.
    IS_COMPILED = _sockets.INTERFACE == _INTERFACE and os.environ.get("KAPPAMQ_KERNEL") != "python"


class PlainStanding:
    """The specification of the compiled one."""

    __slots__ = ("fd", "is_plain", "last_active", "unanswered", "unanswered_max")

    def __init__(self, *, unanswered_max: int, now: float) -> None:
        self.unanswered = 0
        """Requests of the peer that have no answer yet."""
        self.unanswered_max = unanswered_max
        self.is_plain = False
        """Whether what is read next begins with a frame, and answers may be written at once: nothing waits to be read,
        handled or written, nobody is paused, nothing is closing. Who changes one of these clears it first; only
        `Connection.reconsider` sets it, after looking at all of them."""
        self.last_active = now
        """When something was read or written last."""
        self.fd = -1
        """The socket, where connections are served in turns."""


Standing = PlainStanding if TYPE_CHECKING or not IS_COMPILED else _sockets.Standing
