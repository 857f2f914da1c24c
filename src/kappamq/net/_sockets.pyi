from kappamq.net.connection import Connection

INTERFACE: int

class Standing:
    unanswered: int
    unanswered_max: int
    is_plain: bool
    last_active: float
    fd: int
    def __init__(self, *, unanswered_max: int, now: float) -> None: ...

class Sockets:
    def __init__(self, epoll: int) -> None: ...
    def add(self, fd: int, connection: Connection) -> None: ...
    def remove(self, fd: int) -> None: ...
    def receive(
        self, now: float, look_us: int = 0
    ) -> tuple[list[Connection], list[bytes], list[int], list[tuple[int, int, bytes | int | None]]]: ...

def note_taken(
    connections: list[Connection],
    buffers: list[bytes],
    taken: list[tuple[int, int, int]],
    *,
    sources: list[tuple[bytes, bytes]],
    askers: list[tuple[Connection, int]],
) -> tuple[int, list[tuple[Connection, bytes, int]]]: ...
def reply_plain(
    replies: list[tuple[Connection, bytes, int]],
) -> tuple[list[tuple[Connection, bytes, int]], list[tuple[Connection, bytes, int]]]: ...
