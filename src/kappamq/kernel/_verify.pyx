# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""The functions of `verify_reference.py`, compiled. That module says what they do; this one may only be faster.

What lies on the disk may be anything: every read is checked against the end of its buffer before it happens. Nothing
here needs the interpreter while it looks at records, so others run meanwhile, also while a page comes from the disk.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcmp

INTERFACE = 1

cdef enum:
    MAGIC_V1 = -626843481
    MAGIC_V2 = -626843477
    RECORD_BYTES_MIN = 91
    CRC_PROPERTY_BYTES = 20
    CRC_NAME_BYTES = 9
    UNIT_BYTES = 20
    BORN_V6 = 0x10
    STORE_V6 = 0x20

cdef const char *CRC_NAME = b"__CRC32#\x01"
cdef int64_t NO_CRC = 0x7FFFFFFFFFFFFFFF
cdef object I64_MAX = (1 << 63) - 1
cdef object I64_MIN = -(1 << 63)


cdef inline uint32_t _get32(const uint8_t *at) noexcept nogil:
    return (<uint32_t>at[0] << 24) | (<uint32_t>at[1] << 16) | (<uint32_t>at[2] << 8) | at[3]


cdef inline int64_t _get64(const uint8_t *at) noexcept nogil:
    return <int64_t>((<uint64_t>_get32(at) << 32) | _get32(at + 4))


cdef inline int16_t _get16(const uint8_t *at) noexcept nogil:
    return <int16_t>((<uint32_t>at[0] << 8) | at[1])


cdef extern from "crc31.h" nogil:
    void _prepare_crc "kappa_crc_prepare"() noexcept
    uint32_t _crc31 "kappa_crc31"(const uint8_t *at, size_t size) noexcept


_prepare_crc()


cdef int64_t _valid_size(
    const uint8_t *log, int64_t at, int64_t limit, int64_t log_offset, int64_t crc_from, int64_t *topic_at
) noexcept nogil:
    """As `valid_size`; `limit` is within the buffer. `topic_at` is where the length of the topic lies."""
    cdef const uint8_t *record
    cdef const uint8_t *tail
    cdef int64_t total, position, body_bytes, body_start, properties_bytes
    cdef int32_t magic
    cdef uint32_t flags, found, digits
    cdef int index
    if at < 0 or limit - at < RECORD_BYTES_MIN:
        return 0
    record = log + at
    total = <int32_t>_get32(record)
    magic = <int32_t>_get32(record + 4)
    if _get64(record + 28) != log_offset or (magic != MAGIC_V1 and magic != MAGIC_V2):
        return 0
    if total < RECORD_BYTES_MIN or total > limit - at:
        return 0
    # All that follows is relative to the record and stays within `total`, which fits 31 bits: nothing overflows.
    flags = _get32(record + 36)
    position = 84 + (12 if flags & BORN_V6 else 0) + (12 if flags & STORE_V6 else 0)
    if position + 4 > total:
        return 0
    body_bytes = <int32_t>_get32(record + position)
    body_start = position + 4
    position = body_start + body_bytes
    if body_bytes < 0 or position + 4 > total:
        return 0
    topic_at[0] = position
    if magic == MAGIC_V1:
        position += 1 + record[position]
    else:
        position += 2 + _get16(record + position)
    if position < body_start or position > total - 2:
        return 0
    properties_bytes = _get16(record + position)
    if properties_bytes < 0 or position + 2 + properties_bytes != total:
        return 0
    if properties_bytes >= CRC_PROPERTY_BYTES:
        tail = record + total - CRC_PROPERTY_BYTES
        if memcmp(tail, CRC_NAME, CRC_NAME_BYTES) == 0 and tail[CRC_PROPERTY_BYTES - 1] == 2:
            found = _crc31(record, total - CRC_PROPERTY_BYTES)
            for index in range(10):  # Least significant first.
                if tail[CRC_NAME_BYTES + index] != 48 + found % 10:
                    return 0
                found //= 10
            return total
    if log_offset >= crc_from:
        return 0
    return total if _crc31(record + body_start, body_bytes) == _get32(record + 8) else 0


cdef bint _belongs_to(
    const uint8_t *record,
    int64_t topic_at,
    const uint8_t *topic,
    Py_ssize_t topic_bytes,
    int64_t queue_id,
    int64_t queue_offset,
) noexcept nogil:
    cdef int64_t found
    cdef int head = 1
    if <int32_t>_get32(record + 12) != queue_id or _get64(record + 20) != queue_offset:
        return False
    if <int32_t>_get32(record + 4) == MAGIC_V1:
        found = record[topic_at]
    else:
        found = _get16(record + topic_at)
        head = 2
    # The record was found to have room for a topic of the length that it names.
    return found == topic_bytes and memcmp(record + topic_at + head, topic, <size_t>topic_bytes) == 0


def valid_size(log, at, limit, log_offset, *, crc_from=I64_MAX):
    cdef Py_buffer view
    cdef int64_t topic_at, end
    if at < 0 or not I64_MIN <= log_offset <= I64_MAX:
        return 0
    PyObject_GetBuffer(log, &view, PyBUF_SIMPLE)
    try:
        end = min(limit, view.len)
        if end - at < RECORD_BYTES_MIN:
            return 0
        return _valid_size(<const uint8_t *>view.buf, at, end, log_offset, min(crc_from, I64_MAX), &topic_at)
    finally:
        PyBuffer_Release(&view)


def verify_entries(
    bytes units not None,
    log,
    *,
    int64_t start,
    int64_t end,
    bytes topic not None,
    int64_t queue_id,
    int64_t queue_offset,
):
    cdef Py_buffer view
    cdef const uint8_t *unit = <const uint8_t *>PyBytes_AS_STRING(units)
    cdef const uint8_t *name = <const uint8_t *>PyBytes_AS_STRING(topic)
    cdef Py_ssize_t name_bytes = PyBytes_GET_SIZE(topic)
    cdef Py_ssize_t count = PyBytes_GET_SIZE(units) // UNIT_BYTES
    cdef Py_ssize_t index = 0
    cdef int64_t log_offset, size, limit, topic_at
    cdef const uint8_t *bytes_of_log
    if PyBytes_GET_SIZE(units) % UNIT_BYTES:
        raise ValueError("queue entries are cut short")
    if start < 0 or end < start:
        return 0
    PyObject_GetBuffer(log, &view, PyBUF_SIMPLE)
    try:
        bytes_of_log = <const uint8_t *>view.buf
        limit = view.len if view.len < end - start else end - start
        with nogil:
            while index < count:
                log_offset = _get64(unit + index * UNIT_BYTES)
                size = <int32_t>_get32(unit + index * UNIT_BYTES + 8)
                # In this order nothing overflows: both offsets are at least 0 when they are subtracted.
                if size <= 0 or log_offset < start:
                    break
                if _valid_size(bytes_of_log, log_offset - start, limit, log_offset, NO_CRC, &topic_at) != size:
                    break
                if not _belongs_to(
                    bytes_of_log + (log_offset - start), topic_at, name, name_bytes, queue_id, queue_offset + index
                ):
                    break
                index += 1
        return index
    finally:
        PyBuffer_Release(&view)


def record_runs(bytes units not None, *, int64_t start, int64_t end, int64_t gap_bytes, int64_t run_bytes_max):
    cdef const uint8_t *unit = <const uint8_t *>PyBytes_AS_STRING(units)
    cdef Py_ssize_t count = PyBytes_GET_SIZE(units) // UNIT_BYTES
    cdef Py_ssize_t index
    cdef int64_t log_offset, size, grown
    cdef int64_t run_start = -1
    cdef int64_t run_end = -1
    cdef list runs = []
    if PyBytes_GET_SIZE(units) % UNIT_BYTES:
        raise ValueError("queue entries are cut short")
    if start < 0:
        start = 0
    if end < start:
        return runs
    for index in range(count):
        log_offset = _get64(unit + index * UNIT_BYTES)
        size = <int32_t>_get32(unit + index * UNIT_BYTES + 8)
        if size <= 0 or size > run_bytes_max or log_offset < start or log_offset > end - size:
            continue
        if run_end >= 0 and run_start <= log_offset and log_offset - run_end <= gap_bytes:
            grown = log_offset + size if log_offset + size > run_end else run_end
            if grown - run_start <= run_bytes_max:
                run_end = grown
                continue
        if run_end >= 0:
            runs.append((run_start, run_end - run_start))
        run_start = log_offset
        run_end = log_offset + size
    if run_end >= 0:
        runs.append((run_start, run_end - run_start))
    return runs
