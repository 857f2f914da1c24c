# cython: language_level=3, boundscheck=False, wraparound=False
"""Reading from and writing to many sockets in one call each, without the interpreter in between.

`turns.py` says what this is for. All sockets are non-blocking; nothing here waits.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.errno cimport EINTR, errno
from libc.stdint cimport int64_t, uint8_t, uint32_t
from libc.stdlib cimport free, malloc

INTERFACE = 2

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

cdef enum:
    EVENTS_MAX = 256
    READ_BYTES_MAX = 262144  # of one socket in one turn
    ARENA_BYTES = 2097152  # of all sockets in one turn

cdef struct Outgoing:
    int fd
    const char *data
    Py_ssize_t size
    int64_t result


cdef class Sockets:
    """The sockets that are registered with one epoll. For the thread of one event loop."""

    cdef int _epoll
    cdef uint8_t *_arena
    cdef epoll_event _events[EVENTS_MAX]
    cdef int64_t _results[EVENTS_MAX]

    def __cinit__(self, int epoll):
        self._epoll = epoll
        self._arena = <uint8_t *>malloc(ARENA_BYTES)
        if self._arena == NULL:
            raise MemoryError

    def __dealloc__(self):
        free(self._arena)

    def receive(self):
        """What has happened: (socket, events, bytes that were read) for each.

        Instead of bytes there is the number of an error below zero, or `None` when nothing was to be read; no bytes
        mean that the peer will send no more.
        """
        cdef int count = 0
        cdef int index
        cdef Py_ssize_t used = 0
        cdef Py_ssize_t room
        cdef ssize_t size
        cdef list found = []
        with nogil:
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
        used = 0
        for index in range(count):
            data = None
            if self._results[index] >= 0:
                data = PyBytes_FromStringAndSize(<const char *>self._arena + used, <Py_ssize_t>self._results[index])
                used += <Py_ssize_t>self._results[index]
            elif self._results[index] < -1:
                data = self._results[index] + 1
            found.append((self._events[index].data.fd, self._events[index].events, data))
        return found

    def send(self, list pairs not None):
        """Write bytes to sockets; for each how many were taken, or the number of an error below zero."""
        cdef Py_ssize_t count = len(pairs)
        cdef Py_ssize_t index
        cdef ssize_t size
        cdef Outgoing *outgoing = <Outgoing *>malloc((count + 1) * sizeof(Outgoing))
        if outgoing == NULL:
            raise MemoryError
        try:
            for index in range(count):
                fd, data = pairs[index]  # The list keeps the bytes alive.
                if not isinstance(data, bytes):
                    raise TypeError("only bytes can be sent")
                outgoing[index].fd = fd
                outgoing[index].data = PyBytes_AS_STRING(data)
                outgoing[index].size = PyBytes_GET_SIZE(data)
            with nogil:
                for index in range(count):
                    while True:
                        size = send(
                            outgoing[index].fd, outgoing[index].data, outgoing[index].size, MSG_DONTWAIT | MSG_NOSIGNAL
                        )
                        if size >= 0 or errno != EINTR:
                            break
                    outgoing[index].result = size if size >= 0 else -errno
            return [outgoing[index].result for index in range(count)]
        finally:
            free(outgoing)
