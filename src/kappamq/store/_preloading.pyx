# cython: language_level=3
"""Parts of a file that are to be in memory, or are: `RealFile.preload` and `are_cached` say what for."""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from libc.errno cimport EINTR, errno
from libc.stdint cimport int64_t, uintptr_t
from libc.stdlib cimport free, malloc

INTERFACE = 2

cdef extern from "<unistd.h>" nogil:
    int _SC_PAGESIZE
    long sysconf(int name)
    ssize_t pread(int descriptor, void *buffer, size_t size, int64_t at)

cdef extern from "<sys/mman.h>" nogil:
    int mincore(void *address, size_t size, unsigned char *found)

cdef enum:
    PAGES_AT_ONCE = 256


def preload(int descriptor, list runs not None, Py_ssize_t piece_bytes):
    """Read each `(position, bytes)` of a file in pieces; stops at the end of the file. Raises `OSError`."""
    cdef Py_ssize_t count = len(runs)
    cdef Py_ssize_t index
    cdef int64_t at, end, left
    cdef ssize_t got
    cdef int fault = 0
    cdef int64_t *places = <int64_t *>malloc((2 * count + 1) * sizeof(int64_t))
    cdef char *sink = <char *>malloc(piece_bytes if piece_bytes > 0 else 1)
    try:
        if places == NULL or sink == NULL:
            raise MemoryError
        if piece_bytes <= 0:
            raise ValueError("a piece needs some bytes")
        for index in range(count):
            places[2 * index], places[2 * index + 1] = runs[index]
        with nogil:
            for index in range(count):
                at = places[2 * index]
                end = at + places[2 * index + 1]
                while at < end:
                    left = end - at
                    got = pread(descriptor, sink, <size_t>(left if left < piece_bytes else piece_bytes), at)
                    if got > 0:
                        at += got
                    elif got == 0:
                        break
                    elif errno != EINTR:
                        fault = errno
                        break
                if fault:
                    break
        if fault:
            raise OSError(fault, "a file could not be read ahead")
    finally:
        free(places)
        free(sink)


def are_resident(view, list runs not None):
    """Whether the system has all pages of each `(position, bytes)` of a file, of which `view` is a map, in memory."""
    cdef Py_buffer memory
    cdef unsigned char found[PAGES_AT_ONCE]
    cdef int64_t page_bytes = sysconf(_SC_PAGESIZE)
    cdef int64_t at, size, end, piece, page
    PyObject_GetBuffer(view, &memory, PyBUF_SIMPLE)
    try:
        if page_bytes <= 0 or <uintptr_t>memory.buf % <uintptr_t>page_bytes:
            return False
        for run in runs:
            at, size = run
            if at < 0 or size < 0 or size > memory.len or at > memory.len - size:
                return False
            end = at + size
            at -= at % page_bytes
            while at < end:
                piece = min(end - at, page_bytes * PAGES_AT_ONCE)
                if mincore(<char *>memory.buf + at, <size_t>piece, found):
                    return False
                for page in range((piece + page_bytes - 1) // page_bytes):
                    if not found[page] & 1:
                        return False
                at += piece
        return True
    finally:
        PyBuffer_Release(&memory)
