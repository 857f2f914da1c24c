# cython: language_level=3
"""Syncing files in a thread that does not need the interpreter: `syncing.py` says what for."""

import os

from libc.errno cimport EINTR, ENOENT, errno
from libc.stdint cimport int64_t, uint64_t
from libc.stdlib cimport free, malloc
from posix.fcntl cimport O_RDONLY, open
from posix.unistd cimport close, read, write

INTERFACE = 2

cdef extern from "<unistd.h>" nogil:
    int fdatasync(int fd)

cdef extern from "<fcntl.h>" nogil:
    int O_CLOEXEC

cdef extern from "<sys/eventfd.h>" nogil:
    int EFD_CLOEXEC
    int EFD_NONBLOCK
    int eventfd(unsigned int count, int flags)

cdef extern from "<pthread.h>" nogil:
    ctypedef struct pthread_mutex_t:
        pass
    int pthread_mutex_init(pthread_mutex_t *mutex, void *attributes)
    int pthread_mutex_lock(pthread_mutex_t *mutex)
    int pthread_mutex_unlock(pthread_mutex_t *mutex)
    int pthread_mutex_destroy(pthread_mutex_t *mutex)

cdef enum:
    FILES_MAX = 256


cdef void _signal(int fd) noexcept nogil:
    cdef uint64_t one = 1
    while write(fd, &one, sizeof(one)) < 0 and errno == EINTR:
        pass


cdef class Syncer:
    """One thread calls `run`; another one everything else."""

    cdef int _wake
    cdef int _done
    cdef pthread_mutex_t _lock
    cdef int _files[FILES_MAX]
    cdef int _count
    cdef int64_t _target
    cdef int64_t _reached
    cdef int _fault
    cdef bint _is_wanted
    cdef bint _is_stopping

    def __cinit__(self):
        self._wake = self._done = -1
        pthread_mutex_init(&self._lock, NULL)
        self._wake = eventfd(0, EFD_CLOEXEC)
        self._done = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)
        if self._wake < 0 or self._done < 0:
            raise OSError(errno, "no event could be made for syncing files")

    def __dealloc__(self):
        if self._wake >= 0:
            close(self._wake)
        if self._done >= 0:
            close(self._done)
        pthread_mutex_destroy(&self._lock)

    def fileno(self):
        """Readable when a sync has ended."""
        return self._done

    def request(self, list files not None, int64_t target):
        """Sync these files, which then are durable up to `target`. What was asked before and is not begun yet is part of it."""
        cdef int wanted[FILES_MAX]
        cdef int count = len(files)
        cdef int index
        if count > FILES_MAX:
            raise ValueError("too many files to sync at once")
        for index in range(count):
            wanted[index] = files[index]
        pthread_mutex_lock(&self._lock)
        for index in range(count):
            self._files[index] = wanted[index]
        self._count = count
        self._target = target
        self._is_wanted = True
        pthread_mutex_unlock(&self._lock)
        _signal(self._wake)

    def stop(self):
        """End the thread after what was asked for."""
        pthread_mutex_lock(&self._lock)
        self._is_stopping = True
        pthread_mutex_unlock(&self._lock)
        _signal(self._wake)

    def take(self):
        """Up to where all is durable, and the number of an error or 0."""
        cdef uint64_t signals
        read(self._done, &signals, sizeof(signals))
        pthread_mutex_lock(&self._lock)
        reached = self._reached
        fault = self._fault
        pthread_mutex_unlock(&self._lock)
        return reached, fault

    def run(self):
        """Sync what is asked for, until `stop` or an error."""
        cdef int files[FILES_MAX]
        cdef int count, index
        cdef int fault = 0
        cdef int64_t target
        cdef uint64_t signals
        cdef bint is_wanted, is_stopping
        with nogil:
            while True:
                read(self._wake, &signals, sizeof(signals))
                pthread_mutex_lock(&self._lock)
                count = self._count
                for index in range(count):
                    files[index] = self._files[index]
                target = self._target
                is_wanted = self._is_wanted
                is_stopping = self._is_stopping
                self._is_wanted = False
                pthread_mutex_unlock(&self._lock)
                if is_wanted:
                    for index in range(count):
                        if fdatasync(files[index]) < 0:
                            fault = errno
                            break
                    pthread_mutex_lock(&self._lock)
                    if fault:
                        self._fault = fault
                    else:
                        self._reached = target
                    pthread_mutex_unlock(&self._lock)
                    _signal(self._done)
                if fault or is_stopping:
                    break


def sync_files(paths not None):
    """Sync files one after the other; one that does not exist is no error. Raises `OSError` for the first that fails."""
    cdef list names = [os.fsencode(path) for path in paths]
    cdef Py_ssize_t count = len(names)
    cdef Py_ssize_t index
    cdef int fd
    cdef int fault = 0
    cdef const char **at = <const char **>malloc((count + 1) * sizeof(char *))
    if at == NULL:
        raise MemoryError
    try:
        for index in range(count):
            at[index] = names[index]  # The list keeps it alive.
        with nogil:
            for index in range(count):
                fd = _open(at[index])
                if fd < 0:
                    fault = 0 if errno == ENOENT else errno
                else:
                    fault = _sync(fd)
                    close(fd)
                if fault:
                    break
        if fault:
            raise OSError(fault, os.strerror(fault), os.fsdecode(names[index]))
    finally:
        free(at)


cdef int _open(const char *path) noexcept nogil:
    cdef int fd = open(path, O_RDONLY | O_CLOEXEC)
    while fd < 0 and errno == EINTR:
        fd = open(path, O_RDONLY | O_CLOEXEC)
    return fd


cdef int _sync(int fd) noexcept nogil:
    """0, or the number of an error."""
    while fdatasync(fd) != 0:
        if errno != EINTR:
            return errno
    return 0
