# cython: language_level=3
"""Reading parts of a file for the system to keep, without the interpreter: `RealFile.preload` says what for."""

from libc.errno cimport EINTR, errno
from libc.stdint cimport int64_t
from libc.stdlib cimport free, malloc

INTERFACE = 1

cdef extern from "<unistd.h>" nogil:
    ssize_t pread(int descriptor, void *buffer, size_t size, int64_t at)


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
