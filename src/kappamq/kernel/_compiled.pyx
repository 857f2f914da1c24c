# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""The functions of `reference.py`, compiled. That module says what they do; this one may only be faster.

All input may come from the network: every read is checked against the end of its buffer before it happens.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy

INTERFACE = 1

cdef enum:
    MAGIC_V1 = -626843481
    MAGIC_V2 = -626843477
    CRC_PROPERTY_BYTES = 20
    TOPIC_V1_BYTES_MAX = 127
    RECORD_FIXED_BYTES = 75

cdef extern from *:
    """
    static inline void kappa_put16(unsigned char *at, unsigned int v) {
        at[0] = (unsigned char)(v >> 8); at[1] = (unsigned char)v;
    }
    static inline void kappa_put32(unsigned char *at, unsigned int v) {
        at[0] = (unsigned char)(v >> 24); at[1] = (unsigned char)(v >> 16);
        at[2] = (unsigned char)(v >> 8); at[3] = (unsigned char)v;
    }
    static inline void kappa_put64(unsigned char *at, unsigned long long v) {
        kappa_put32(at, (unsigned int)(v >> 32)); kappa_put32(at + 4, (unsigned int)v);
    }
    static inline unsigned int kappa_get32(const unsigned char *at) {
        return ((unsigned int)at[0] << 24) | ((unsigned int)at[1] << 16) | ((unsigned int)at[2] << 8) | at[3];
    }
    """
    void put16 "kappa_put16"(uint8_t *at, uint32_t value) noexcept nogil
    void put32 "kappa_put32"(uint8_t *at, uint32_t value) noexcept nogil
    void put64 "kappa_put64"(uint8_t *at, uint64_t value) noexcept nogil
    uint32_t get32 "kappa_get32"(const uint8_t *at) noexcept nogil


# ── Checksums and hashes ──────────────────────────────────────────────────────────────────────────────────────────────

cdef uint32_t _crc_table[8][256]


cdef void _fill_crc_table() noexcept:
    cdef uint32_t value
    cdef int number, step
    for number in range(256):
        value = <uint32_t>number
        for step in range(8):
            value = (value >> 1) ^ (0xEDB88320U if value & 1 else 0U)
        _crc_table[0][number] = value
    for number in range(256):
        for step in range(1, 8):
            value = _crc_table[step - 1][number]
            _crc_table[step][number] = (value >> 8) ^ _crc_table[0][value & 0xFF]


_fill_crc_table()


cdef uint32_t _crc31(const uint8_t *at, Py_ssize_t size) noexcept nogil:
    cdef uint32_t crc = 0xFFFFFFFFU
    cdef uint32_t high
    while size >= 8:
        crc ^= at[0] | (<uint32_t>at[1] << 8) | (<uint32_t>at[2] << 16) | (<uint32_t>at[3] << 24)
        high = at[4] | (<uint32_t>at[5] << 8) | (<uint32_t>at[6] << 16) | (<uint32_t>at[7] << 24)
        crc = (
            _crc_table[7][crc & 0xFF]
            ^ _crc_table[6][(crc >> 8) & 0xFF]
            ^ _crc_table[5][(crc >> 16) & 0xFF]
            ^ _crc_table[4][crc >> 24]
            ^ _crc_table[3][high & 0xFF]
            ^ _crc_table[2][(high >> 8) & 0xFF]
            ^ _crc_table[1][(high >> 16) & 0xFF]
            ^ _crc_table[0][high >> 24]
        )
        at += 8
        size -= 8
    while size > 0:
        crc = (crc >> 8) ^ _crc_table[0][(crc ^ at[0]) & 0xFF]
        at += 1
        size -= 1
    return (crc ^ 0xFFFFFFFFU) & 0x7FFFFFFFU


def crc31(data):
    cdef const uint8_t[::1] view
    if isinstance(data, bytes):
        return _crc31(<const uint8_t *>PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data))
    view = data
    if view.shape[0] == 0:
        return 0
    return _crc31(&view[0], view.shape[0])


def java_hash(str text not None):
    return java_hash_extend(0, text)


def java_hash_extend(prefix_hash, str text not None):
    cdef uint32_t value = <uint32_t>(prefix_hash & 0xFFFFFFFF)
    cdef uint32_t point
    cdef Py_UCS4 character
    for character in text:
        point = <uint32_t>character
        if point > 0xFFFF:
            point -= 0x10000
            value = value * 31 + (0xD800 + (point >> 10))
            point = 0xDC00 + (point & 0x3FF)
        value = value * 31 + point
    return <int32_t>value


# ── Records ───────────────────────────────────────────────────────────────────────────────────────────────────────────

cdef struct Record:
    const uint8_t *body
    Py_ssize_t body_bytes
    const uint8_t *topic
    Py_ssize_t topic_bytes
    const uint8_t *properties
    Py_ssize_t properties_bytes
    const uint8_t *born_host
    Py_ssize_t born_host_bytes
    const uint8_t *store_host
    Py_ssize_t store_host_bytes
    int32_t queue_id
    int32_t flag
    int32_t flags
    int32_t retry_count
    int64_t queue_offset
    int64_t log_offset
    int64_t born_at_ms
    int64_t stored_at_ms
    int64_t prepared_offset
    bint append_crc


cdef bint _lacks_separator(const Record *record) noexcept nogil:
    return (
        record.append_crc
        and record.properties_bytes > 0
        and record.properties[record.properties_bytes - 1] != 2
    )


cdef Py_ssize_t _record_bytes(const Record *record) noexcept nogil:
    return (
        RECORD_FIXED_BYTES
        + record.born_host_bytes
        + record.store_host_bytes
        + record.body_bytes
        + record.topic_bytes
        + (0 if record.topic_bytes <= TOPIC_V1_BYTES_MAX else 1)
        + _all_properties_bytes(record)
    )


cdef Py_ssize_t _all_properties_bytes(const Record *record) noexcept nogil:
    return (
        record.properties_bytes
        + (1 if _lacks_separator(record) else 0)
        + (CRC_PROPERTY_BYTES if record.append_crc else 0)
    )


cdef void _write_record(const Record *record, uint8_t *start, Py_ssize_t total) noexcept nogil:
    """Fill exactly `total` bytes, which `_record_bytes` gave."""
    cdef uint8_t *at = start
    cdef uint32_t crc
    cdef int digit
    put32(at, <uint32_t>total)
    put32(at + 4, <uint32_t>(MAGIC_V1 if record.topic_bytes <= TOPIC_V1_BYTES_MAX else MAGIC_V2))
    put32(at + 8, _crc31(record.body, record.body_bytes))
    put32(at + 12, <uint32_t>record.queue_id)
    put32(at + 16, <uint32_t>record.flag)
    put64(at + 20, <uint64_t>record.queue_offset)
    put64(at + 28, <uint64_t>record.log_offset)
    put32(at + 36, <uint32_t>record.flags)
    put64(at + 40, <uint64_t>record.born_at_ms)
    at += 48
    memcpy(at, record.born_host, record.born_host_bytes)
    at += record.born_host_bytes
    put64(at, <uint64_t>record.stored_at_ms)
    at += 8
    memcpy(at, record.store_host, record.store_host_bytes)
    at += record.store_host_bytes
    put32(at, <uint32_t>record.retry_count)
    put64(at + 4, <uint64_t>record.prepared_offset)
    put32(at + 12, <uint32_t>record.body_bytes)
    at += 16
    memcpy(at, record.body, record.body_bytes)
    at += record.body_bytes
    if record.topic_bytes <= TOPIC_V1_BYTES_MAX:
        at[0] = <uint8_t>record.topic_bytes
        at += 1
    else:
        put16(at, <uint32_t>record.topic_bytes)
        at += 2
    memcpy(at, record.topic, record.topic_bytes)
    at += record.topic_bytes
    put16(at, <uint32_t>_all_properties_bytes(record))
    at += 2
    memcpy(at, record.properties, record.properties_bytes)
    at += record.properties_bytes
    if _lacks_separator(record):
        at[0] = 2
        at += 1
    if record.append_crc:
        crc = _crc31(start, at - start)
        memcpy(at, <const char *>b"__CRC32#\x01", 9)
        for digit in range(10):
            at[9 + digit] = <uint8_t>(48 + crc % 10)
            crc //= 10
        at[19] = 2


def encode_record(
    *,
    bytes body not None,
    bytes topic not None,
    bytes properties not None,
    int32_t queue_id,
    int32_t flag,
    int64_t queue_offset,
    int64_t log_offset,
    int32_t flags,
    int64_t born_at_ms,
    bytes born_host not None,
    int64_t stored_at_ms,
    bytes store_host not None,
    int32_t retry_count,
    int64_t prepared_offset,
    bint append_crc,
):
    cdef Record record
    cdef Py_ssize_t total
    record.body = <const uint8_t *>PyBytes_AS_STRING(body)
    record.body_bytes = PyBytes_GET_SIZE(body)
    record.topic = <const uint8_t *>PyBytes_AS_STRING(topic)
    record.topic_bytes = PyBytes_GET_SIZE(topic)
    record.properties = <const uint8_t *>PyBytes_AS_STRING(properties)
    record.properties_bytes = PyBytes_GET_SIZE(properties)
    record.born_host = <const uint8_t *>PyBytes_AS_STRING(born_host)
    record.born_host_bytes = PyBytes_GET_SIZE(born_host)
    record.store_host = <const uint8_t *>PyBytes_AS_STRING(store_host)
    record.store_host_bytes = PyBytes_GET_SIZE(store_host)
    record.queue_id = queue_id
    record.flag = flag
    record.flags = flags
    record.retry_count = retry_count
    record.queue_offset = queue_offset
    record.log_offset = log_offset
    record.born_at_ms = born_at_ms
    record.stored_at_ms = stored_at_ms
    record.prepared_offset = prepared_offset
    record.append_crc = append_crc
    total = _record_bytes(&record)
    if record.topic_bytes > 0x7FFF or _all_properties_bytes(&record) > 0x7FFF or total > 0x7FFFFFFF:
        raise OverflowError("a part of the record is too long for its length field")
    data = PyBytes_FromStringAndSize(NULL, total)
    _write_record(&record, <uint8_t *>PyBytes_AS_STRING(data), total)
    return data


# ── Frames ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def split_frames(bytes buffer not None, Py_ssize_t frame_bytes_max):
    cdef const uint8_t *data = <const uint8_t *>PyBytes_AS_STRING(buffer)
    cdef Py_ssize_t size = PyBytes_GET_SIZE(buffer)
    cdef Py_ssize_t at = 0
    cdef Py_ssize_t length, header_bytes, end
    cdef uint32_t mark
    cdef list frames = []
    while size - at >= 4:
        length = <int32_t>get32(data + at)
        fault = _length_fault(length, frame_bytes_max)
        if fault is not None or size - at < 8:
            return frames, at, fault
        mark = get32(data + at + 4)
        header_bytes = mark & 0xFFFFFF
        if header_bytes > length - 4:
            return frames, at, f"header of {header_bytes} bytes does not fit a frame of {length} bytes"
        if mark >> 24 > 1:
            return frames, at, f"unknown header type {mark >> 24}"
        end = at + 4 + length
        if end > size:
            break
        frames.append((mark >> 24, at + 8, at + 8 + header_bytes, end))
        at = end
    return frames, at, None


cdef _length_fault(Py_ssize_t length, Py_ssize_t frame_bytes_max):
    if length < 4:
        return f"frame length {length} is too small"
    if length + 4 > frame_bytes_max:
        return f"frame length {length} is over the limit of {frame_bytes_max - 4}"
    return None
