# cython: language_level=3, boundscheck=False, wraparound=False
"""Reading from and writing to many sockets in one call each, without the interpreter in between.

`turns.py` says what this is for. All sockets are non-blocking; nothing here waits.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.errno cimport EINTR, errno
from libc.stdint cimport int64_t, uint8_t, uint32_t
from libc.stdlib cimport free, malloc

INTERFACE = 4

cdef extern from "<sys/socket.h>" nogil:
    int MSG_DONTWAIT
    int MSG_NOSIGNAL
    ssize_t recv(int fd, void *buffer, size_t size, int flags)
    ssize_t send(int fd, const void *buffer, size_t size, int flags)

cdef extern from "<sys/epoll.h>" nogil:
    uint32_t EPOLLIN
    ctypedef union epoll_data_t:
        int fd
    struct epoll_event:
        uint32_t events
        epoll_data_t data
    int epoll_wait(int epoll, epoll_event *events, int count, int timeout)

cdef extern from "<time.h>" nogil:
    int CLOCK_MONOTONIC
    struct timespec:
        long tv_sec
        long tv_nsec
    int clock_gettime(int clock, timespec *now)

cdef enum:
    EVENTS_MAX = 256
    READ_BYTES_MAX = 262144  # of one socket in one turn
    ARENA_BYTES = 2097152  # of all sockets in one turn

cdef struct Outgoing:
    int fd
    const char *data
    Py_ssize_t size
    int64_t result


cdef int64_t _now_ns() noexcept nogil:
    cdef timespec now
    clock_gettime(CLOCK_MONOTONIC, &now)
    return <int64_t>now.tv_sec * 1000000000 + now.tv_nsec


cdef class Standing:
    """How things stand with one connection: `standing.py` says what each field means."""

    cdef public Py_ssize_t unanswered
    cdef readonly Py_ssize_t unanswered_max
    cdef public bint is_plain
    cdef public double last_active
    cdef public int fd

    def __init__(self, *, Py_ssize_t unanswered_max, double now):
        self.unanswered = 0
        self.unanswered_max = unanswered_max
        self.is_plain = False
        self.last_active = now
        self.fd = -1


cdef class Sockets:
    """The sockets that are registered with one epoll. For the thread of one event loop."""

    cdef int _epoll
    cdef dict _connections
    cdef uint8_t *_arena
    cdef epoll_event _events[EVENTS_MAX]
    cdef int64_t _results[EVENTS_MAX]

    def __cinit__(self, int epoll):
        self._epoll = epoll
        self._connections = {}
        self._arena = <uint8_t *>malloc(ARENA_BYTES)
        if self._arena == NULL:
            raise MemoryError

    def __dealloc__(self):
        free(self._arena)

    def add(self, int fd, connection):
        """What is read from this socket is the connection's, from now on."""
        self._connections[fd] = connection

    def remove(self, int fd):
        self._connections.pop(fd, None)

    def receive(self, double now, int look_us=0):
        """What has happened: connections that are plain, what was read from each, how many more requests each may
        have open; and (socket, events, bytes that were read) for each of the others.

        Instead of bytes there is the number of an error below zero, or `None` when nothing was to be read; no bytes
        mean that the peer will send no more. When there is nothing yet, looks again for `look_us` microseconds.
        """
        cdef int count = self._read(look_us)
        cdef int index
        cdef Py_ssize_t used = 0
        cdef Py_ssize_t size
        cdef Standing standing
        cdef list connections = []
        cdef list buffers = []
        cdef list rooms = []
        cdef list others = []
        for index in range(count):
            if self._results[index] < 0:
                data = None if self._results[index] == -1 else self._results[index] + 1
            else:
                size = <Py_ssize_t>self._results[index]
                data = PyBytes_FromStringAndSize(<const char *>self._arena + used, size)
                used += size
                if size and self._events[index].events == EPOLLIN:
                    connection = self._connections.get(self._events[index].data.fd)
                    if connection is not None:
                        standing = connection.standing
                        if standing.is_plain:
                            standing.last_active = now
                            connections.append(connection)
                            buffers.append(data)
                            rooms.append(standing.unanswered_max - standing.unanswered)
                            continue
            others.append((self._events[index].data.fd, self._events[index].events, data))
        return connections, buffers, rooms, others

    cdef int _read(self, int look_us) noexcept:
        """Read from all sockets that have something, one after the other into the arena; how many there are."""
        cdef int count
        cdef int index
        cdef Py_ssize_t used = 0
        cdef Py_ssize_t room
        cdef ssize_t size
        cdef int64_t until_ns
        with nogil:
            count = epoll_wait(self._epoll, self._events, EVENTS_MAX, 0)
            if count == 0 and look_us > 0:
                until_ns = _now_ns() + <int64_t>look_us * 1000
                while count == 0 and _now_ns() < until_ns:
                    count = epoll_wait(self._epoll, self._events, EVENTS_MAX, 0)
            for index in range(count):
                self._results[index] = -1
                if not self._events[index].events & EPOLLIN:
                    continue
                room = ARENA_BYTES - used
                if room < READ_BYTES_MAX:
                    # What is not read now is there in the next turn; others come first then.
                    count = index
                    break
                while True:
                    size = recv(self._events[index].data.fd, self._arena + used, READ_BYTES_MAX, MSG_DONTWAIT)
                    if size >= 0 or errno != EINTR:
                        break
                if size < 0:
                    self._results[index] = -1 - errno
                else:
                    self._results[index] = size
                    used += size
        return count if count > 0 else 0


def note_taken(list connections not None, list buffers not None, list taken not None, *, list sources not None, list askers not None):
    """Of each read so much was taken: up to a position, so many sends, so many answers to come.

    Adds those with sends to `sources` and `askers`. Returns the number of all sends, and the reads that are not over.
    """
    cdef Py_ssize_t index, at, count, answers
    cdef Py_ssize_t total = 0
    cdef Standing standing
    cdef list rest = []
    if len(connections) != len(taken) or len(buffers) != len(taken):
        raise ValueError("each read needs its connection and what was taken of it")
    for index in range(len(taken)):
        at, count, answers = taken[index]
        connection = connections[index]
        buffer = buffers[index]
        if count:
            sources.append((buffer, connection.peer_host))
            askers.append((connection, answers))
            total += count
            standing = connection.standing
            standing.unanswered += answers
            if not standing.is_plain or standing.unanswered >= standing.unanswered_max:
                connection.pace()
        if at < len(buffer):
            rest.append((connection, buffer, at))
    return total, rest


def reply_plain(list replies not None):
    """Write (connection, frames, requests that they answer) to those connections that are plain, without delay.

    Returns those that are not, and of the others, those that did not take all: (connection, frames, how many bytes
    were taken, or the number of an error below zero).
    """
    cdef Py_ssize_t total = len(replies)
    cdef Py_ssize_t index
    cdef Py_ssize_t count = 0
    cdef Py_ssize_t answers
    cdef ssize_t size
    cdef Standing standing
    cdef list direct = []
    cdef list others = []
    cdef list short = []
    cdef Outgoing *outgoing = <Outgoing *>malloc((total + 1) * sizeof(Outgoing))
    if outgoing == NULL:
        raise MemoryError
    try:
        for index in range(total):
            reply = replies[index]
            connection, data, answers = reply
            if not isinstance(data, bytes):
                raise TypeError("only bytes can be sent")
            standing = connection.standing
            if not standing.is_plain:
                others.append(reply)
                continue
            standing.unanswered = max(0, standing.unanswered - answers)
            outgoing[count].fd = standing.fd
            outgoing[count].data = PyBytes_AS_STRING(data)
            outgoing[count].size = PyBytes_GET_SIZE(data)
            direct.append(reply)  # Keeps the bytes alive.
            count += 1
        with nogil:
            for index in range(count):
                while True:
                    size = send(
                        outgoing[index].fd, outgoing[index].data, outgoing[index].size, MSG_DONTWAIT | MSG_NOSIGNAL
                    )
                    if size >= 0 or errno != EINTR:
                        break
                outgoing[index].result = size if size >= 0 else -errno
        for index in range(count):
            if outgoing[index].result != outgoing[index].size:
                short.append((direct[index][0], direct[index][1], outgoing[index].result))
        return others, short
    finally:
        free(outgoing)
