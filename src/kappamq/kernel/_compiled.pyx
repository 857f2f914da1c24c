# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""The functions of `reference.py`, compiled. That module says what they do; this one may only be faster.

All input may come from the network: every read is checked against the end of its buffer before it happens.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_GET_SIZE, PyByteArray_Resize
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.dict cimport PyDict_GetItemWithError
from cpython.object cimport PyObject
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc, realloc
from libc.string cimport memchr, memcmp, memcpy, memmove, memset

INTERFACE = 16

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

cdef extern from "crc31.h" nogil:
    void _prepare_crc "kappa_crc_prepare"() noexcept
    uint32_t _crc31 "kappa_crc31"(const uint8_t *at, size_t size) noexcept


_prepare_crc()


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


def split_frames(bytes buffer not None, Py_ssize_t frame_bytes_max, Py_ssize_t start=0):
    cdef const uint8_t *data = <const uint8_t *>PyBytes_AS_STRING(buffer)
    cdef Py_ssize_t size = PyBytes_GET_SIZE(buffer)
    cdef Py_ssize_t at = start
    cdef Py_ssize_t length, header_bytes, end
    cdef uint32_t mark
    cdef list frames = []
    if start < 0:
        raise ValueError("the position lies outside of the buffer")
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


# ── Reading ───────────────────────────────────────────────────────────────────────────────────────────────────────────

cdef int64_t _get64(const uint8_t *at) noexcept nogil:
    return <int64_t>((<uint64_t>get32(at) << 32) | get32(at + 4))


cdef Py_ssize_t _fitting(
    const uint8_t *unit,
    Py_ssize_t count,
    int64_t log_bytes,
    int64_t start,
    int64_t lowest,
    int64_t bytes_max,
    int64_t *total,
) noexcept nogil:
    """How many of the records fit `bytes_max`, and what they take; -1 when one of them lies outside."""
    cdef Py_ssize_t taken = 0
    cdef int64_t at, size
    total[0] = 0
    while taken < count:
        at = _get64(unit + taken * 20)
        size = <int32_t>get32(unit + taken * 20 + 8)
        if taken and total[0] + size > bytes_max:
            break
        # In this order nothing overflows: both offsets are at least 0 when they are subtracted.
        if size <= 0 or at < lowest or at < start or start < 0 or at - start > log_bytes - size:
            return -1
        total[0] += size
        taken += 1
    return taken


def gather_records(bytes units not None, log, *, int64_t start, int64_t lowest, int64_t bytes_max):
    cdef const uint8_t[::1] view = log
    cdef const uint8_t *unit = <const uint8_t *>PyBytes_AS_STRING(units)
    cdef const uint8_t *source
    cdef uint8_t *out
    cdef Py_ssize_t index, taken
    cdef int64_t total, size, at
    if PyBytes_GET_SIZE(units) % 20:
        raise ValueError("queue entries are cut short")
    taken = _fitting(unit, PyBytes_GET_SIZE(units) // 20, view.shape[0], start, lowest, bytes_max, &total)
    if taken <= 0:
        return None
    source = &view[0]
    data = PyBytes_FromStringAndSize(NULL, <Py_ssize_t>total)
    out = <uint8_t *>PyBytes_AS_STRING(data)
    for index in range(taken):
        at = _get64(unit + index * 20)
        size = <int32_t>get32(unit + index * 20 + 8)
        memcpy(out, source + (at - start), <size_t>size)
        out += size
    return data, taken, _get64(unit), at


# ── The fast lane: scanning ───────────────────────────────────────────────────────────────────────────────────────────

cdef enum:
    TARGETS_MAX_C = 262144
    HELD_BYTES_MAX_C = 8192
    HELD_BYTES_FIRST = 320  # room for entries of one queue, doubled as they come
    FIELDS = 14
    PULL_FIELDS = 13
    TEXT_FIELD = 8  # of a send: its properties, the one value that may hold anything
    FIXED_BYTES = 17  # of a binary header, up to and with the length of the remark
    BINARY = 1
    ONE_WAY = 2
    MORE = 4
    BATCH = 8
    BATCH_ID_SHIFT = 16
    BATCH_ITEMS_MAX = 4096
    BATCH_TOPIC_BYTES_MAX = 127
    ITEM_BYTES = 20
    TOGETHER_BYTES = 137
    TRANSACTION_BITS = 0xC
    V6_BITS = 0x30
    ROW_BYTES = 72
    PLACE_BYTES = 20
    KEY_BYTES = 12
    UNIT_BYTES = 20
    ENTRY_BYTES = 20
    HEAD_BYTES = 8
    IDS_BYTES_C = 16
    ID_TEXT_BYTES = 42  # name, separator, 32 digits, end
    QUEUE_ROW_BYTES = 28

cdef int64_t _NONE_HELD = 1LL << 62

cdef packed struct Row:
    uint32_t target
    uint32_t source
    int32_t request_id
    uint32_t marks
    uint32_t body_at
    uint32_t body_bytes
    uint32_t text_at
    uint32_t text_bytes
    uint32_t id_at
    uint32_t id_bytes
    uint32_t keys_at
    uint32_t keys_bytes
    int32_t tags_code
    int32_t flags
    int32_t flag
    int32_t retry_count
    int64_t born_at_ms

cdef packed struct Place:
    int64_t log_offset
    int64_t queue_offset
    int32_t size

cdef packed struct Queued:
    uint32_t target
    uint32_t count
    uint32_t sends
    int64_t start
    int64_t record_bytes

cdef packed struct Key:
    int32_t hashed
    int64_t log_offset

cdef packed struct Head:
    uint32_t slot
    uint32_t number

cdef struct Span:
    const uint8_t *at
    Py_ssize_t size

cdef struct Cursor:
    const uint8_t *at
    const uint8_t *end

cdef struct Header:
    bint is_pull  # which names are fields
    int64_t code
    int64_t request_id
    int64_t flag
    uint32_t seen  # fields that were given, by number
    uint32_t styles  # 1: short names were used, 2: long ones
    Span values[14]

cdef struct Arena:
    uint8_t *data
    Py_ssize_t size
    Py_ssize_t capacity


cdef bint _reserve(Arena *arena, Py_ssize_t more) noexcept nogil:
    """Whether `more` bytes fit behind what the arena holds; makes room for them."""
    cdef Py_ssize_t capacity = arena.capacity
    cdef uint8_t *data
    if arena.size + more <= capacity:
        return True
    while arena.size + more > capacity:
        capacity = 4096 if capacity == 0 else capacity * 2
    data = <uint8_t *>realloc(arena.data, capacity)
    if data == NULL:
        return False
    arena.data = data
    arena.capacity = capacity
    return True


cdef extern from *:
    """
    #include <string.h>
    #define KAPPA_EACH(byte) (0x0101010101010101ULL * (byte))
    /* Nothing but 0 in the highest bits of all bytes, unless one of them is 0 (or below n, which is at most 128). */
    #define KAPPA_ZERO(word) (((word) - KAPPA_EACH(1)) & ~(word) & KAPPA_EACH(0x80))
    #define KAPPA_BELOW(word, n) (((word) - KAPPA_EACH(n)) & ~(word) & KAPPA_EACH(0x80))
    static inline unsigned long long kappa_word(const unsigned char *at) {
        unsigned long long word;
        memcpy(&word, at, 8);
        return word;
    }
    /* Whether one of eight bytes is no plain text of JSON: a control, a quote, a backslash, or not ASCII. */
    static inline int kappa_has_odd(const unsigned char *at) {
        unsigned long long word = kappa_word(at);
        return ((word & KAPPA_EACH(0x80)) | KAPPA_BELOW(word, 0x20) | KAPPA_ZERO(word ^ KAPPA_EACH(0x7F))
            | KAPPA_ZERO(word ^ KAPPA_EACH(0x22)) | KAPPA_ZERO(word ^ KAPPA_EACH(0x5C))) != 0;
    }
    static inline int kappa_has_high(const unsigned char *at) {
        return (kappa_word(at) & KAPPA_EACH(0x80)) != 0;
    }
    """
    bint _has_odd "kappa_has_odd"(const uint8_t *at) noexcept nogil
    bint _has_high "kappa_has_high"(const uint8_t *at) noexcept nogil


cdef bint _is_plain(const Span *text) noexcept nogil:
    cdef Py_ssize_t index = 0
    cdef uint8_t c
    while text.size - index >= 8:
        if _has_odd(text.at + index):
            return False
        index += 8
    for index in range(index, text.size):
        c = text.at[index]
        if c < 0x20 or c > 0x7E or c == 0x22 or c == 0x5C:
            return False
    return True


cdef bint _is_utf8(const uint8_t *at, Py_ssize_t size):
    cdef Py_ssize_t index = 0
    while size - index >= 8 and not _has_high(at + index):
        index += 8
    for index in range(index, size):
        if at[index] >= 0x80:
            try:
                PyUnicode_DecodeUTF8(<const char *>at, size, NULL)
            except UnicodeDecodeError:
                return False
            return True
    return True


cdef bint _take_number(Cursor *cursor, int64_t *number) noexcept nogil:
    """A whole number without a leading zero or a plus."""
    cdef uint64_t value = 0
    cdef bint negative = False
    cdef int digits = 0
    cdef const uint8_t *at = cursor.at
    if at < cursor.end and at[0] == 0x2D:
        negative = True
        at += 1
    if at >= cursor.end or at[0] < 0x30 or at[0] > 0x39:
        return False
    if at[0] == 0x30:
        if negative:
            return False
        cursor.at = at + 1
        number[0] = 0
        return True
    while at < cursor.end and 0x30 <= at[0] <= 0x39:
        digits += 1
        if digits > 19:
            return False
        value = value * 10 + (at[0] - 0x30)
        at += 1
    if value > 0x7FFFFFFFFFFFFFFFU + (1 if negative else 0):
        return False
    number[0] = <int64_t>(0 - value) if negative else <int64_t>value
    cursor.at = at
    return True


cdef bint _is_i32(int64_t number) noexcept nogil:
    return -2147483648 <= number <= 2147483647


cdef bint _take(Cursor *cursor, uint8_t wanted) noexcept nogil:
    if cursor.at < cursor.end and cursor.at[0] == wanted:
        cursor.at += 1
        return True
    return False


cdef void _skip_blanks(Cursor *cursor) noexcept nogil:
    cdef uint8_t c
    while cursor.at < cursor.end:
        c = cursor.at[0]
        if c != 0x20 and c != 0x0A and c != 0x0D and c != 0x09:
            break
        cursor.at += 1


cdef bint _take_name(Cursor *cursor, Span *name) noexcept nogil:
    """`"letters":`, with blanks around each part."""
    cdef uint8_t c
    _skip_blanks(cursor)
    if not _take(cursor, 0x22):
        return False
    name.at = cursor.at
    while cursor.at < cursor.end:
        c = cursor.at[0] | 0x20
        if c < 0x61 or c > 0x7A:
            break
        cursor.at += 1
    name.size = cursor.at - name.at
    if name.size == 0 or not _take(cursor, 0x22):
        return False
    _skip_blanks(cursor)
    if not _take(cursor, 0x3A):
        return False
    _skip_blanks(cursor)
    return True


cdef bint _is_hex(uint8_t c) noexcept nogil:
    return 0x30 <= c <= 0x39 or 0x61 <= (c | 0x20) <= 0x66


cdef bint _take_string(Cursor *cursor, Span *text) noexcept nogil:
    """A JSON string; `text` is what stands between the quotes."""
    cdef uint8_t c
    cdef const uint8_t *at
    cdef const uint8_t *end = cursor.end
    if not _take(cursor, 0x22):
        return False
    at = cursor.at
    text.at = at
    while at < end:
        c = at[0]
        if c == 0x22:
            text.size = at - text.at
            cursor.at = at + 1
            return True
        if c < 0x20:
            return False
        if c != 0x5C:
            at += 1
            continue
        if end - at < 2:
            return False
        c = at[1]
        if c == 0x75:
            if end - at < 6 or not (_is_hex(at[2]) and _is_hex(at[3]) and _is_hex(at[4]) and _is_hex(at[5])):
                return False
            at += 6
        elif c == 0x22 or c == 0x5C or c == 0x2F or c == 0x62 or c == 0x66 or c == 0x6E or c == 0x72 or c == 0x74:
            at += 2
        else:
            return False
    return False


cdef uint32_t _hex_value(uint8_t c) noexcept nogil:
    return c - 0x30 if c <= 0x39 else (c | 0x20) - 0x57


cdef Py_ssize_t _unescape(const Span *text, uint8_t *out) noexcept nogil:
    """Bytes of a JSON string that `_take_string` has checked; never more than it has. -1 where it needs surrogates."""
    cdef const uint8_t *at = text.at
    cdef const uint8_t *end = text.at + text.size
    cdef const uint8_t *stop
    cdef uint8_t *start = out
    cdef uint32_t point
    cdef uint8_t c
    while at < end:
        stop = <const uint8_t *>memchr(at, 0x5C, end - at)
        if stop == NULL:
            stop = end
        memcpy(out, at, stop - at)
        out += stop - at
        at = stop
        if at == end:
            break
        c = at[1]
        at += 2
        if c != 0x75:
            if c == 0x62:
                c = 8
            elif c == 0x66:
                c = 12
            elif c == 0x6E:
                c = 10
            elif c == 0x72:
                c = 13
            elif c == 0x74:
                c = 9
            out[0] = c
            out += 1
            continue
        point = (
            (_hex_value(at[0]) << 12) | (_hex_value(at[1]) << 8) | (_hex_value(at[2]) << 4) | _hex_value(at[3])
        )
        at += 4
        if point < 0x80:
            out[0] = <uint8_t>point
            out += 1
        elif point < 0x800:
            out[0] = <uint8_t>(0xC0 | (point >> 6))
            out[1] = <uint8_t>(0x80 | (point & 0x3F))
            out += 2
        elif 0xD800 <= point <= 0xDFFF:
            return -1
        else:
            out[0] = <uint8_t>(0xE0 | (point >> 12))
            out[1] = <uint8_t>(0x80 | ((point >> 6) & 0x3F))
            out[2] = <uint8_t>(0x80 | (point & 0x3F))
            out += 3
    return out - start


cdef const char *_LONG_NAMES[14]
_LONG_NAMES[:] = [
    b"producerGroup",
    b"topic",
    b"defaultTopic",
    b"defaultTopicQueueNums",
    b"queueId",
    b"sysFlag",
    b"bornTimestamp",
    b"flag",
    b"properties",
    b"reconsumeTimes",
    b"unitMode",
    b"maxReconsumeTimes",
    b"batch",
    b"bname",
]
cdef Py_ssize_t _LONG_SIZES[14]
_LONG_SIZES[:] = [13, 5, 12, 21, 7, 7, 13, 4, 10, 14, 8, 17, 5, 5]


cdef const char *_PULL_NAMES[13]
_PULL_NAMES[:] = [
    b"consumerGroup",
    b"topic",
    b"queueId",
    b"sysFlag",
    b"subscription",
    b"expressionType",
    b"subVersion",
    b"queueOffset",
    b"maxMsgNums",
    b"commitOffset",
    b"suspendTimeoutMillis",
    b"maxMsgBytes",
    b"bname",
]
cdef Py_ssize_t _PULL_SIZES[13]
_PULL_SIZES[:] = [13, 5, 7, 7, 12, 14, 10, 11, 10, 12, 20, 11, 5]


cdef bint _is(const Span *text, const char *wanted, Py_ssize_t size) noexcept nogil:
    return text.size == size and memcmp(text.at, wanted, size) == 0


cdef int _field(const Span *name, Header *header) noexcept nogil:
    """Number of a field that was not given before; -1 for any other name."""
    cdef int number = -1
    cdef int index
    if header.is_pull:
        for index in range(PULL_FIELDS):
            if _is(name, _PULL_NAMES[index], _PULL_SIZES[index]):
                number = index
                break
    elif name.size == 1:
        if 0x61 <= name.at[0] < 0x61 + FIELDS:
            number = name.at[0] - 0x61
            header.styles |= 1
    else:
        for index in range(FIELDS):
            if _is(name, _LONG_NAMES[index], _LONG_SIZES[index]):
                number = index
                header.styles |= 2
                break
    if number < 0 or header.seen & (1U << number):
        return -1
    header.seen |= 1U << number
    return number


cdef bint _read_header(Cursor *cursor, Header *header, uint32_t kind) noexcept nogil:
    """Fill a header, for which `is_pull` is set; whether it is exact."""
    header.code = header.request_id = header.flag = 0
    header.seen = header.styles = 0
    return _read_json(cursor, header) if kind == 0 else _read_binary(cursor, header)


cdef bint _read_json(Cursor *cursor, Header *header) noexcept nogil:
    cdef Span name, text
    cdef int64_t number
    cdef uint32_t seen = 0
    cdef uint32_t bit
    if not _take(cursor, 0x7B):
        return False
    while True:
        if not _take_name(cursor, &name):
            return False
        if _is(&name, b"extFields", 9):
            bit = 1
            if seen & bit or not _read_json_fields(cursor, header):
                return False
        elif _is(&name, b"language", 8) or _is(&name, b"remark", 6) or _is(&name, b"serializeTypeCurrentRPC", 23):
            bit = 2 if name.size == 8 else 4 if name.size == 6 else 8
            if seen & bit or not _take_string(cursor, &text) or not _is_plain(&text):
                return False
        else:
            if _is(&name, b"code", 4):
                bit = 16
            elif _is(&name, b"flag", 4):
                bit = 32
            elif _is(&name, b"opaque", 6):
                bit = 64
            elif _is(&name, b"version", 7):
                bit = 128
            else:
                return False
            if seen & bit or not _take_number(cursor, &number) or not _is_i32(number):
                return False
            if bit == 16:
                header.code = number
            elif bit == 32:
                header.flag = number
            elif bit == 64:
                header.request_id = number
        seen |= bit
        _skip_blanks(cursor)
        if _take(cursor, 0x7D):
            _skip_blanks(cursor)
            return cursor.at == cursor.end and seen & 1
        if not _take(cursor, 0x2C):
            return False


cdef bint _read_json_fields(Cursor *cursor, Header *header) noexcept nogil:
    cdef Span name
    cdef int number
    if not _take(cursor, 0x7B):
        return False
    while True:
        if not _take_name(cursor, &name):
            return False
        number = _field(&name, header)
        if number < 0 or not _take_string(cursor, &header.values[number]):
            return False
        if (number != TEXT_FIELD or header.is_pull) and not _is_plain(&header.values[number]):
            return False
        _skip_blanks(cursor)
        if _take(cursor, 0x7D):
            return True
        if not _take(cursor, 0x2C):
            return False


cdef bint _read_binary(Cursor *cursor, Header *header) noexcept nogil:
    cdef const uint8_t *at = cursor.at
    cdef const uint8_t *end = cursor.end
    cdef Span name
    cdef int64_t size
    cdef int number
    if end - at < FIXED_BYTES + 4:
        return False
    # A code is 16 bits with a sign; those we know are small.
    header.code = (<int64_t>at[0] << 8) | at[1]
    header.request_id = <int32_t>get32(at + 5)
    header.flag = <int32_t>get32(at + 9)
    size = <int32_t>get32(at + 13)
    at += FIXED_BYTES
    if size < 0 or size > end - at - 4:
        return False
    name.at = at
    name.size = <Py_ssize_t>size
    if not _is_plain(&name):
        return False
    at += size
    if <int64_t><int32_t>get32(at) != end - at - 4:
        return False
    at += 4
    while at < end:
        if end - at < 2:
            return False
        size = (<int64_t>at[0] << 8) | at[1]
        at += 2
        if size == 0 or size > 0x7FFF or size > end - at - 4:
            return False
        name.at = at
        name.size = <Py_ssize_t>size
        at += size
        number = _field(&name, header)
        if number < 0:
            return False
        size = <int32_t>get32(at)
        at += 4
        if size <= 0 or size > end - at:
            return False
        header.values[number].at = at
        header.values[number].size = <Py_ssize_t>size
        at += size
        if (number != TEXT_FIELD or header.is_pull) and not _is_plain(&header.values[number]):
            return False
    return True


cdef bint _number_of(const Header *header, int field, int64_t *number, bint is_long=False) noexcept nogil:
    """Value of a number field, left alone when it is absent; whether it is well-formed."""
    cdef Cursor cursor
    if not header.seen & (1U << field):
        return True
    cursor.at = header.values[field].at
    cursor.end = cursor.at + header.values[field].size
    return (
        _take_number(&cursor, number)
        and cursor.at == cursor.end
        and (is_long or _is_i32(number[0]))
    )


cdef bint _read_send(const Header *header, Row *row, int64_t *queue_id) noexcept nogil:
    """Fill a row from a header; whether it is an exact send of one message."""
    cdef int64_t flags = 0
    cdef int64_t flag = 0
    cdef int64_t retry_count = 0
    cdef int64_t born_at_ms = 0
    cdef int64_t other = 0
    cdef const Span *value
    if not (
        ((header.code == 310 or header.code == 320) and header.styles == 1)
        or (header.code == 10 and header.styles == 2)
    ):
        return False
    if header.flag != 0 and header.flag != 2:
        return False
    # Producer group, topic, queue and birth must be there.
    if header.seen & 0x53 != 0x53:
        return False
    if not (
        _number_of(header, 3, &other)
        and _number_of(header, 4, queue_id)
        and _number_of(header, 5, &flags)
        and _number_of(header, 6, &born_at_ms, True)
        and _number_of(header, 7, &flag)
        and _number_of(header, 9, &retry_count)
        and _number_of(header, 11, &other)
    ):
        return False
    if header.seen & (1U << 10):
        value = &header.values[10]
        if not _is(value, b"true", 4) and not _is(value, b"false", 5):
            return False
    row.marks = ONE_WAY if header.flag else 0
    if header.seen & (1U << 12) and _is(&header.values[12], b"true", 4):
        row.marks |= BATCH
        if header.values[1].size > BATCH_TOPIC_BYTES_MAX or flags & TRANSACTION_BITS:
            return False
    elif header.seen & (1U << 12) and not _is(&header.values[12], b"false", 5):
        return False
    elif header.code == 320:
        return False
    row.request_id = <int32_t>header.request_id
    row.flags = <int32_t>flags & ~TRANSACTION_BITS
    row.flag = <int32_t>flag
    row.retry_count = <int32_t>retry_count
    row.born_at_ms = born_at_ms
    return True


cdef bint _begins(const uint8_t *at, Py_ssize_t left, const char *mark, Py_ssize_t size) noexcept nogil:
    return left >= size and memcmp(at, mark, size) == 0


# Of each mark that `_is_unusual` looks for, a bit for its first and for its second byte.
cdef uint8_t _MARK_FIRST[256]
cdef uint8_t _MARK_SECOND[256]
memset(_MARK_FIRST, 0, 256)
memset(_MARK_SECOND, 0, 256)
for _number, _mark in enumerate((b"MS", b"CL", b"__", b"PO", b"TR", b"TI", b"DE", b"WA")):
    _MARK_FIRST[<uint8_t>_mark[0]] |= 1 << _number
    _MARK_SECOND[<uint8_t>_mark[1]] |= 1 << _number


cdef bint _is_unusual(const uint8_t *at, Py_ssize_t size) noexcept nogil:
    """Whether a text holds a mark of a message that is not plain, anywhere."""
    cdef const uint8_t *end = at + size
    cdef uint8_t c
    while end - at >= 2:
        if not _MARK_FIRST[at[0]] & _MARK_SECOND[at[1]]:
            at += 1
            continue
        c = at[0]
        if c == 0x4D:
            if _begins(at, end - at, b"MSG_REGION", 10):
                return True
        elif c == 0x43:
            if _begins(at, end - at, b"CLUSTER", 7):
                return True
        elif c == 0x5F:
            if _begins(at, end - at, b"__CRC32#", 8):
                return True
        elif c == 0x50:
            if _begins(at, end - at, b"POP_CK", 6):
                return True
        elif c == 0x54:
            if _begins(at, end - at, b"TRAN_MSG", 8) or _begins(at, end - at, b"TIMER_DEL", 9):
                return True
        elif c == 0x44:
            if _begins(at, end - at, b"DELAY\x01", 6):
                return True
        elif c == 0x57:
            if _begins(at, end - at, b"WAIT\x01false", 10):
                return True
        at += 1
    return False


cdef int32_t _hash_utf8(uint32_t value, const uint8_t *at, Py_ssize_t size) noexcept nogil:
    """Java's hash of valid UTF-8. What is not valid (rows of a stranger) gives some number, within bounds."""
    cdef const uint8_t *end = at + size
    cdef uint32_t point
    cdef int more
    while at < end:
        point = at[0]
        at += 1
        if point >= 0x80:
            if point >= 0xF0:
                point &= 0x07
                more = 3
            elif point >= 0xE0:
                point &= 0x0F
                more = 2
            else:
                point &= 0x1F
                more = 1
            while more > 0 and at < end:
                point = (point << 6) | (at[0] & 0x3F)
                at += 1
                more -= 1
            if point > 0xFFFF:
                point -= 0x10000
                value = value * 31 + (0xD800 + (point >> 10))
                point = 0xDC00 + (point & 0x3FF)
        value = value * 31 + point
    return <int32_t>value


cdef bint _read_facts(const uint8_t *text, Py_ssize_t size, Row *row) noexcept nogil:
    """Find unique id, keys and tags, positions within the text; whether the text is plain."""
    cdef const uint8_t *at = text
    cdef const uint8_t *end = text + size
    cdef const uint8_t *stop
    cdef const uint8_t *split
    cdef Span name, value
    cdef bint has_tags = False
    row.id_at = row.id_bytes = row.keys_at = row.keys_bytes = 0
    row.tags_code = 0
    while at < end:
        stop = <const uint8_t *>memchr(at, 2, end - at)
        if stop == NULL:
            stop = end
        split = <const uint8_t *>memchr(at, 1, stop - at)
        if split != NULL:
            name.at = at
            name.size = split - at
            value.at = split + 1
            value.size = stop - value.at
            if _is(&name, b"UNIQ_KEY", 8):
                if row.id_bytes or value.size == 0 or not _is_plain(&value):
                    return False
                row.id_at = <uint32_t>(value.at - text)
                row.id_bytes = <uint32_t>value.size
            elif _is(&name, b"KEYS", 4):
                if row.keys_bytes or value.size == 0:
                    return False
                row.keys_at = <uint32_t>(value.at - text)
                row.keys_bytes = <uint32_t>value.size
            elif _is(&name, b"TAGS", 4):
                if has_tags or value.size == 0:
                    return False
                has_tags = True
                row.tags_code = _hash_utf8(0, value.at, value.size)
        at = stop + 1
    return True


cdef Py_ssize_t _add_batch(
    const uint8_t *data,
    Py_ssize_t at,
    Py_ssize_t end,
    Py_ssize_t topic_bytes,
    Row *row,
    Arena *rows,
    Arena *texts,
    Py_ssize_t texts_before,
    Py_ssize_t text_bytes_max,
    Py_ssize_t batch_bytes_max,
) except -2:
    """Add a row for each message of a batch behind what both arenas hold, and say how many; -1 if one is not plain.

    The sizes of the arenas stay as they are: the caller takes the rows over, or lets them be overwritten.
    """
    cdef Py_ssize_t count = 0
    cdef Py_ssize_t rows_size = rows.size
    cdef Py_ssize_t texts_start = texts.size
    cdef Py_ssize_t texts_size = texts_start
    cdef Py_ssize_t total = 0
    cdef Py_ssize_t size, body_bytes, text_bytes
    cdef const uint8_t *text
    cdef bint has_room
    while at < end and count < BATCH_ITEMS_MAX:
        if end - at < ITEM_BYTES + 2:
            return -1
        size = <int32_t>get32(data + at)
        body_bytes = <int32_t>get32(data + at + 16)
        if body_bytes <= 0 or body_bytes > end - at - ITEM_BYTES - 2:
            return -1
        text = data + at + ITEM_BYTES + body_bytes + 2
        text_bytes = (<Py_ssize_t>(text - 2)[0] << 8) | (text - 1)[0]
        if text_bytes > 0x7FFF or text_bytes > end - at - ITEM_BYTES - body_bytes - 2:
            return -1
        if ITEM_BYTES + body_bytes + 2 + text_bytes != size or text_bytes > text_bytes_max:
            return -1
        if not _is_utf8(text, text_bytes) or _is_unusual(text, text_bytes) or not _read_facts(text, text_bytes, row):
            return -1
        total += TOGETHER_BYTES + body_bytes + 3 * topic_bytes + text_bytes
        if texts_before + texts_size + text_bytes > 0x7FFFFFFF:
            return -1
        rows.size = rows_size + count * ROW_BYTES
        texts.size = texts_size
        has_room = _reserve(rows, ROW_BYTES) and _reserve(texts, text_bytes)
        rows.size = rows_size
        texts.size = texts_start
        if not has_room:
            raise MemoryError
        memcpy(texts.data + texts_size, text, text_bytes)
        row.flag = <int32_t>get32(data + at + 12)
        row.body_at = <uint32_t>(at + ITEM_BYTES)
        row.body_bytes = <uint32_t>body_bytes
        row.text_at = <uint32_t>(texts_before + texts_size)
        row.text_bytes = <uint32_t>text_bytes
        if row.id_bytes:
            row.id_at += row.text_at
        if row.keys_bytes:
            row.keys_at += row.text_at
        texts_size += text_bytes
        at += size
        if at < end:
            row.marks |= MORE
        else:
            row.marks &= ~<uint32_t>MORE
        memcpy(rows.data + rows_size + count * ROW_BYTES, row, ROW_BYTES)
        count += 1
    return count if at == end and total <= batch_bytes_max else -1


cdef int _set_targets(uint8_t *rows, Py_ssize_t count, uint32_t target, uint32_t source, bint is_binary) noexcept nogil:
    """Complete new rows of one request."""
    cdef Row row
    cdef Py_ssize_t index
    for index in range(count):
        memcpy(&row, rows + index * ROW_BYTES, ROW_BYTES)
        row.target = target
        row.source = source
        row.marks |= BINARY if is_binary else 0
        memcpy(rows + index * ROW_BYTES, &row, ROW_BYTES)
    return 0


cdef int _extend(bytearray whole, const Arena *part) except -1:
    cdef Py_ssize_t size = PyByteArray_GET_SIZE(whole)
    if part.size:
        PyByteArray_Resize(whole, size + part.size)
        memcpy(PyByteArray_AS_STRING(whole) + size, part.data, part.size)
    return 0


# ── The fast lane: targets ────────────────────────────────────────────────────────────────────────────────────────────

cdef class QueueTail:
    """The growing end of one queue: `targets_reference.py` says what each field means."""

    cdef public int64_t next
    cdef public int64_t end
    cdef public int64_t tail
    cdef public int64_t log_end
    cdef public bint is_deleted
    cdef public bint is_holding
    cdef int64_t _first
    cdef uint8_t *_units
    cdef Py_ssize_t _used
    cdef Py_ssize_t _room

    def __dealloc__(self):
        free(self._units)

    @property
    def first_held(self):
        return self._first if self._used else _NONE_HELD

    def held(self):
        return PyBytes_FromStringAndSize(<const char *>self._units, self._used) if self._used else b""

    def held_part(self, int64_t start, int64_t count):
        cdef int64_t held = self._used // UNIT_BYTES
        cdef int64_t begin
        cdef int64_t end
        if held == 0:
            return _NONE_HELD, b""
        begin = min(max(0, start - self._first), held)
        end = min(max(0, start + count - self._first), held)
        if end <= begin:
            return self._first, b""
        units = PyBytes_FromStringAndSize(
            <const char *>self._units + begin * UNIT_BYTES, <Py_ssize_t>(end - begin) * UNIT_BYTES
        )
        return self._first, units

    def hold(self, bytes units not None, int64_t log_end):
        return self.add_held(<const uint8_t *>PyBytes_AS_STRING(units), PyBytes_GET_SIZE(units), log_end)

    cdef bint add_held(self, const uint8_t *units, Py_ssize_t size, int64_t log_end) noexcept:
        cdef Py_ssize_t room = self._room
        cdef uint8_t *moved
        if self._used + size > HELD_BYTES_MAX_C or size % UNIT_BYTES:
            return False
        if self._used + size > room:
            room = max(room, HELD_BYTES_FIRST)
            while room < self._used + size:
                room *= 2
            moved = <uint8_t *>realloc(self._units, room)
            if moved == NULL:
                return False
            self._units = moved
            self._room = room
        if self._used == 0:
            self._first = self.end
        memcpy(self._units + self._used, units, size)
        self._used += size
        self.log_end = log_end
        self.end += size // UNIT_BYTES
        self.tail = self.end
        return True

    def drop_held(self):
        free(self._units)
        self._units = NULL
        self._used = self._room = 0


cdef struct Slot:
    const uint8_t *topic
    Py_ssize_t topic_bytes
    PyObject *tail
    uint64_t hashed
    int32_t queue_id
    uint32_t topic_hash
    uint64_t call  # Of `place_sends`, in which `mark` was set
    uint32_t mark
    int64_t stored_count
    int64_t stored_bytes
    int64_t stored_sends

cdef struct Bucket:
    uint32_t number  # of the slot, from 1 on; 0: none
    uint32_t hashed


cdef class Targets:
    """Queues by topic and number: a table with open addressing, never more than half full. Slots keep their numbers."""

    cdef list _names  # Keep alive what slots point to.
    cdef list _tails
    cdef Slot *slots
    cdef Py_ssize_t size
    cdef Py_ssize_t _room
    cdef Bucket *_buckets
    cdef uint64_t _buckets_mask
    cdef uint64_t _seed
    cdef uint64_t call

    def __cinit__(self):
        self._names = []
        self._tails = []
        self._room = 16
        self._buckets_mask = 31
        # Not the same in two processes: clients name topics.
        self._seed = <uint64_t><int64_t>hash("targets") | 1
        self.slots = <Slot *>malloc(self._room * sizeof(Slot))
        self._buckets = <Bucket *>calloc(self._buckets_mask + 1, sizeof(Bucket))
        if self.slots == NULL or self._buckets == NULL:
            raise MemoryError

    def __dealloc__(self):
        free(self.slots)
        free(self._buckets)

    def __len__(self):
        return self.size

    def __iter__(self):
        return iter(list(self._names))

    def has(self, bytes topic not None, int64_t queue_id):
        return self.find(<const uint8_t *>PyBytes_AS_STRING(topic), PyBytes_GET_SIZE(topic), queue_id) >= 0

    def name_of(self, Py_ssize_t number):
        if not 0 <= number < self.size:
            raise IndexError("there is no such target")
        return self._names[number]

    def tail_of(self, Py_ssize_t number):
        tail = self._tails[number] if 0 <= number < self.size else None
        if tail is None:
            raise ValueError("a row names a queue that is not there")
        return tail

    def set_tail(self, Py_ssize_t number, QueueTail tail not None):
        if not 0 <= number < self.size:
            raise IndexError("there is no such target")
        self._tails[number] = tail
        self.slots[number].tail = <PyObject *>tail

    def number_of(self, bytes topic not None, int32_t queue_id):
        cdef const uint8_t *at = <const uint8_t *>PyBytes_AS_STRING(topic)
        cdef Py_ssize_t size = PyBytes_GET_SIZE(topic)
        cdef Py_ssize_t number = self.find(at, size, queue_id)
        cdef Slot *slot
        if number >= 0:
            return number
        if self.size >= TARGETS_MAX_C or size > 0x7FFF:
            raise ValueError("there are too many targets, or a topic is too long")
        topic_hash = java_hash(topic.decode() + "#")  # Raises `ValueError`, too.
        self._make_room()
        self._names.append((topic, queue_id))
        self._tails.append(None)
        number = self.size
        slot = &self.slots[number]
        memset(slot, 0, sizeof(Slot))
        slot.topic = at
        slot.topic_bytes = size
        slot.queue_id = queue_id
        slot.topic_hash = <uint32_t>(topic_hash & 0xFFFFFFFF)
        slot.hashed = _hash_name(at, size, queue_id, self._seed)
        self._enter(slot.hashed, number)
        self.size += 1
        return number

    cdef Py_ssize_t find(self, const uint8_t *topic, Py_ssize_t size, int64_t queue_id) noexcept nogil:
        """The number of the slot; -1: there is none."""
        cdef uint64_t hashed = _hash_name(topic, size, queue_id, self._seed)
        cdef uint64_t at = hashed & self._buckets_mask
        cdef const Bucket *bucket
        cdef const Slot *slot
        while True:
            bucket = &self._buckets[at]
            if bucket.number == 0:
                return -1
            if bucket.hashed == <uint32_t>(hashed >> 32):
                slot = &self.slots[bucket.number - 1]
                if (
                    slot.queue_id == queue_id
                    and slot.topic_bytes == size
                    and memcmp(slot.topic, topic, size) == 0
                ):
                    return <Py_ssize_t>bucket.number - 1
            at = (at + 1) & self._buckets_mask

    cdef void _enter(self, uint64_t hashed, Py_ssize_t number) noexcept:
        cdef uint64_t at = hashed & self._buckets_mask
        while self._buckets[at].number:
            at = (at + 1) & self._buckets_mask
        self._buckets[at].number = <uint32_t>(number + 1)
        self._buckets[at].hashed = <uint32_t>(hashed >> 32)

    cdef int _make_room(self) except -1:
        """For one more slot."""
        cdef Slot *slots
        cdef Bucket *buckets
        cdef Py_ssize_t number
        if self.size < self._room:
            return 0
        slots = <Slot *>realloc(self.slots, 2 * self._room * sizeof(Slot))
        if slots == NULL:
            raise MemoryError
        self.slots = slots
        buckets = <Bucket *>calloc(4 * self._room, sizeof(Bucket))
        if buckets == NULL:
            raise MemoryError
        free(self._buckets)
        self._buckets = buckets
        self._room *= 2
        self._buckets_mask = 2 * self._room - 1
        for number in range(self.size):
            self._enter(self.slots[number].hashed, number)
        return 0

    cdef void begin_call(self) noexcept:
        """Marks that were set before mean nothing any more."""
        self.call += 1

    def lost(self, rows):
        cdef Py_ssize_t rows_bytes
        cdef const uint8_t *row_data = _data_of(rows, &rows_bytes)
        cdef Py_ssize_t index
        cdef uint32_t target
        cdef list found = []
        if rows_bytes % ROW_BYTES:
            raise ValueError("rows are cut short")
        for index in range(rows_bytes // ROW_BYTES):
            memcpy(&target, row_data + index * ROW_BYTES, 4)
            if target < <uint64_t>self.size and self._is_lost(target) and target not in found:
                found.append(target)
        return found

    cdef bint _is_lost(self, uint32_t target) noexcept:
        cdef PyObject *tail = self.slots[target].tail
        return tail == NULL or (<QueueTail>tail).is_deleted

    cdef QueueTail _checked_tail(self, const Queued *queued):
        if queued.target >= <uint64_t>self.size or self.slots[queued.target].tail == NULL:
            raise ValueError("a row names a queue that is not there")
        return <QueueTail>self.slots[queued.target].tail

    def take_back(self, bytes queues not None):
        cdef Py_ssize_t index = _queue_rows(queues)
        cdef Queued queued
        while index > 0:
            index -= 1
            queued = _queued_at(queues, index)
            self._checked_tail(&queued).next = queued.start

    def hold(self, bytes queues not None, bytes units not None, int64_t log_end):
        cdef const uint8_t *unit = <const uint8_t *>PyBytes_AS_STRING(units)
        cdef Py_ssize_t count = _queue_rows(queues)
        cdef Py_ssize_t total = 0
        cdef Py_ssize_t index, size
        cdef Queued queued
        cdef QueueTail tail
        cdef list fresh = []
        cdef list left = []
        for index in range(count):
            queued = _queued_at(queues, index)
            self._checked_tail(&queued)
            total += <Py_ssize_t>queued.count * UNIT_BYTES
        if total != PyBytes_GET_SIZE(units):
            raise ValueError("the entries are not those of the rows")
        for index in range(count):
            queued = _queued_at(queues, index)
            size = <Py_ssize_t>queued.count * UNIT_BYTES
            tail = <QueueTail>self.slots[queued.target].tail
            if (
                queued.start != tail.tail
                or tail.tail != tail.end
                or tail.is_deleted
                or not tail.add_held(unit, size, log_end)
            ):
                left.append(index)
            elif not tail.is_holding:
                tail.is_holding = True
                fresh.append(tail)
            unit += size
        return fresh, left

    def count(self, bytes queues not None):
        cdef Py_ssize_t index
        cdef int64_t messages = 0
        cdef int64_t size = 0
        cdef int64_t sends = 0
        cdef Queued queued
        cdef Slot *slot
        for index in range(_queue_rows(queues)):
            queued = _queued_at(queues, index)
            self._checked_tail(&queued)
            slot = &self.slots[queued.target]
            slot.stored_count += queued.count
            slot.stored_bytes += queued.record_bytes
            slot.stored_sends += queued.sends
            messages += queued.count
            size += queued.record_bytes
            sends += queued.sends
        return messages, size, sends

    def take_stored(self):
        cdef Py_ssize_t index
        cdef Slot *slot
        cdef list found = []
        for index in range(self.size):
            slot = &self.slots[index]
            if slot.stored_count or slot.stored_bytes or slot.stored_sends:
                name = self._names[index][0].decode()
                found.append((name, slot.stored_count, slot.stored_bytes, slot.stored_sends))
                slot.stored_count = slot.stored_bytes = slot.stored_sends = 0
        return found


cdef Py_ssize_t _queue_rows(bytes queues) except -1:
    """Their number."""
    if PyBytes_GET_SIZE(queues) % QUEUE_ROW_BYTES:
        raise ValueError("rows are cut short")
    return PyBytes_GET_SIZE(queues) // QUEUE_ROW_BYTES


cdef inline Queued _queued_at(bytes queues, Py_ssize_t index):
    cdef Queued queued
    memcpy(&queued, PyBytes_AS_STRING(queues) + index * QUEUE_ROW_BYTES, QUEUE_ROW_BYTES)
    return queued


cdef inline uint64_t _hash_name(const uint8_t *at, Py_ssize_t size, int64_t queue_id, uint64_t seed) noexcept nogil:
    cdef uint64_t hashed = seed ^ (<uint64_t>queue_id * 0x9E3779B97F4A7C15ULL) ^ <uint64_t>size
    cdef uint64_t word
    while size > 0:
        word = 0
        memcpy(&word, at, min(size, 8))
        hashed = (hashed ^ word) * 0xFF51AFD7ED558CCDULL
        hashed ^= hashed >> 32
        at += 8
        size -= 8
    hashed *= 0xC4CEB9FE1A85EC53ULL
    return hashed ^ (hashed >> 29)


cdef struct Scan:
    Arena rows
    Arena texts
    Py_ssize_t texts_before
    const uint8_t *stamp
    Py_ssize_t stamp_bytes
    uint8_t *ids
    Py_ssize_t frame_bytes_max
    Py_ssize_t body_bytes_max
    Py_ssize_t text_bytes_max
    Py_ssize_t batch_bytes_max


cdef struct Scanned:
    Py_ssize_t at
    Py_ssize_t count
    Py_ssize_t answers


cdef extern from "<string.h>" nogil:
    void *memmem(const void *hay, size_t hay_bytes, const void *needle, size_t needle_bytes)


cdef void _write_id(uint8_t *out, const uint8_t *ids) noexcept nogil:
    """The property that holds the next unique id."""
    cdef int index
    cdef uint8_t c
    memcpy(out, <const char *>b"UNIQ_KEY\x01", 9)
    for index in range(2 * IDS_BYTES_C):
        c = ids[index >> 1] & 0xF if index & 1 else ids[index >> 1] >> 4
        out[9 + index] = 0x30 + c if c < 10 else 0x37 + c
    out[ID_TEXT_BYTES - 1] = 2


cdef void _move_id(uint8_t *ids) noexcept nogil:
    """Count on to the next one."""
    cdef int index = IDS_BYTES_C - 1
    while index >= 8:
        ids[index] = (ids[index] + 1) & 0xFF
        if ids[index]:
            break
        index -= 1


cdef object _scan_buffer(
    Scan *scan,
    bytes buffer,
    Scanned *taken,
    uint32_t source,
    Py_ssize_t count_max,
    Targets targets,
    dict topics,
):
    """Take plain sends from `taken.at` on, and say there how far; the topic that stopped it because it is not known."""
    cdef const uint8_t *data = <const uint8_t *>PyBytes_AS_STRING(buffer)
    cdef Py_ssize_t size = PyBytes_GET_SIZE(buffer)
    cdef Py_ssize_t at = taken.at
    cdef Py_ssize_t length, header_bytes, body_at, end, text_bytes, id_bytes, added
    cdef uint32_t mark
    cdef Header header
    cdef Cursor cursor
    cdef Row row
    cdef int64_t queue_id
    cdef const Span *text
    cdef const Span *topic
    cdef uint8_t *out
    cdef Py_ssize_t target
    cdef bint makes_id
    taken.count = taken.answers = 0
    while taken.count < count_max and size - at >= 8:
        length = <int32_t>get32(data + at)
        mark = get32(data + at + 4)
        header_bytes = mark & 0xFFFFFF
        if length < 4 or length + 4 > scan.frame_bytes_max or length + 4 > size - at or header_bytes > length - 4:
            break
        body_at = at + 8 + header_bytes
        end = at + 4 + length
        if end - body_at <= 0 or end - body_at > scan.body_bytes_max or mark >> 24 > 1:
            break
        header.is_pull = False
        cursor.at = data + at + 8
        cursor.end = data + body_at
        if not _read_header(&cursor, &header, mark >> 24):
            break
        if not _read_send(&header, &row, &queue_id):
            break
        if not header.seen & (1U << TEXT_FIELD):
            header.values[TEXT_FIELD].at = cursor.end
            header.values[TEXT_FIELD].size = 0
        text = &header.values[TEXT_FIELD]
        topic = &header.values[1]
        makes_id = False
        if not _reserve(&scan.texts, text.size + 1 + scan.stamp_bytes + ID_TEXT_BYTES) or not _reserve(&scan.rows, ROW_BYTES):
            raise MemoryError
        out = scan.texts.data + scan.texts.size
        if mark >> 24 == 0:
            text_bytes = _unescape(text, out)
        else:
            memcpy(out, text.at, text.size)
            text_bytes = text.size
        if text_bytes < 0 or not _is_utf8(out, text_bytes) or _is_unusual(out, text_bytes):
            break
        if row.marks & BATCH:
            # Of what the request itself says about properties, the unique id is wanted for the reply; nothing is stored.
            if not _read_facts(out, text_bytes, &row) or row.id_bytes > scan.text_bytes_max:
                break
            id_bytes = row.id_bytes
            if id_bytes > 0xFFFF or scan.texts_before + scan.texts.size + id_bytes > 0x7FFFFFFF:
                break
            memmove(out, out + row.id_at, id_bytes)
            row.marks |= <uint32_t>id_bytes << BATCH_ID_SHIFT
            scan.texts.size += id_bytes
            added = _add_batch(
                data,
                body_at,
                end,
                topic.size,
                &row,
                &scan.rows,
                &scan.texts,
                scan.texts_before,
                scan.text_bytes_max,
                scan.batch_bytes_max,
            )
            scan.texts.size -= id_bytes
            if added < 0:
                break
            text_bytes = row.text_at + row.text_bytes - scan.texts_before - scan.texts.size
        else:
            if not _read_facts(out, text_bytes, &row):
                break
            makes_id = row.id_bytes == 0
            if makes_id and text_bytes and memmem(out, text_bytes, <const char *>b"UNIQ_KEY", 8) != NULL:
                break
            if text_bytes and out[text_bytes - 1] != 2:
                out[text_bytes] = 2
                text_bytes += 1
            memcpy(out + text_bytes, scan.stamp, scan.stamp_bytes)
            text_bytes += scan.stamp_bytes
            if makes_id:
                _write_id(out + text_bytes, scan.ids)
                row.id_at = <uint32_t>(text_bytes + 9)
                row.id_bytes = 2 * IDS_BYTES_C
                text_bytes += ID_TEXT_BYTES
            if text_bytes > scan.text_bytes_max or scan.texts_before + scan.texts.size + text_bytes > 0x7FFFFFFF:
                break
            row.body_at = <uint32_t>body_at
            row.body_bytes = <uint32_t>(end - body_at)
            row.text_at = <uint32_t>(scan.texts_before + scan.texts.size)
            row.text_bytes = <uint32_t>text_bytes
            row.id_at += row.text_at
            if row.keys_bytes:
                row.keys_at += row.text_at
            memcpy(scan.rows.data + scan.rows.size, &row, ROW_BYTES)
            added = 1
        target = targets.find(topic.at, topic.size, queue_id)
        if target < 0:
            name = PyBytes_FromStringAndSize(<const char *>topic.at, topic.size)
            queues = topics.get(name)
            if queues is None:
                taken.at = at
                return name
            if not 0 <= queue_id < queues or targets.size >= TARGETS_MAX_C:
                break
            target = targets.number_of(name, queue_id)
        row.target = <uint32_t>target
        _set_targets(scan.rows.data + scan.rows.size, added, row.target, source, mark >> 24 == 1)
        scan.texts.size += text_bytes
        scan.rows.size += added * ROW_BYTES
        if makes_id:
            _move_id(scan.ids)
        taken.count += 1
        taken.answers += 0 if row.marks & ONE_WAY else 1
        at = end
    taken.at = at
    return None


cdef int _begin_scan(
    Scan *scan,
    bytearray texts,
    bytes stamp,
    bytearray ids,
    Py_ssize_t frame_bytes_max,
    Py_ssize_t body_bytes_max,
    Py_ssize_t text_bytes_max,
    Py_ssize_t batch_bytes_max,
) except -1:
    if PyByteArray_GET_SIZE(ids) != IDS_BYTES_C:
        raise ValueError("ids are 16 bytes")
    scan.ids = <uint8_t *>PyByteArray_AS_STRING(ids)
    memset(&scan.rows, 0, sizeof(Arena))
    memset(&scan.texts, 0, sizeof(Arena))
    scan.texts_before = PyByteArray_GET_SIZE(texts)
    scan.stamp = <const uint8_t *>PyBytes_AS_STRING(stamp)
    scan.stamp_bytes = PyBytes_GET_SIZE(stamp)
    scan.frame_bytes_max = frame_bytes_max
    scan.body_bytes_max = body_bytes_max
    scan.text_bytes_max = text_bytes_max
    scan.batch_bytes_max = batch_bytes_max
    if scan.texts_before > 0x7FFFFFFF:
        raise ValueError("the position lies outside of the buffer, or the buffer is too long")
    return 0


def scan_sends(
    bytes buffer not None,
    Py_ssize_t at,
    bytearray rows not None,
    bytearray texts not None,
    Targets targets not None,
    *,
    uint32_t source,
    dict topics not None,
    bytes stamp not None,
    bytearray ids not None,
    Py_ssize_t count_max,
    Py_ssize_t frame_bytes_max,
    Py_ssize_t body_bytes_max,
    Py_ssize_t text_bytes_max,
    Py_ssize_t batch_bytes_max,
):
    cdef Scan scan
    cdef Scanned taken
    if at < 0 or PyBytes_GET_SIZE(buffer) > 0x7FFFFFFF:
        raise ValueError("the position lies outside of the buffer, or the buffer is too long")
    _begin_scan(&scan, texts, stamp, ids, frame_bytes_max, body_bytes_max, text_bytes_max, batch_bytes_max)
    taken.at = at
    try:
        unknown = _scan_buffer(&scan, buffer, &taken, source, count_max, targets, topics)
        _extend(texts, &scan.texts)
        _extend(rows, &scan.rows)
        return taken.at, taken.count, taken.answers, unknown
    finally:
        free(scan.rows.data)
        free(scan.texts.data)


def scan_turn(
    list buffers not None,
    list rooms not None,
    bytearray rows not None,
    bytearray texts not None,
    Targets targets not None,
    *,
    uint32_t source,
    dict topics not None,
    bytes stamp not None,
    bytearray ids not None,
    Py_ssize_t count_max,
    Py_ssize_t frame_bytes_max,
    Py_ssize_t body_bytes_max,
    Py_ssize_t text_bytes_max,
    Py_ssize_t batch_bytes_max,
):
    cdef Scan scan
    cdef Scanned taken
    cdef Py_ssize_t index
    cdef Py_ssize_t room
    cdef list found = []
    if len(buffers) != len(rooms):
        raise ValueError("each buffer needs its room")
    _begin_scan(&scan, texts, stamp, ids, frame_bytes_max, body_bytes_max, text_bytes_max, batch_bytes_max)
    try:
        for index in range(len(buffers)):
            buffer = buffers[index]
            if not isinstance(buffer, bytes) or PyBytes_GET_SIZE(buffer) > 0x7FFFFFFF:
                raise ValueError("a buffer is not bytes, or too long")
            room = rooms[index]
            taken.at = 0
            _scan_buffer(&scan, buffer, &taken, source, min(room, count_max), targets, topics)
            if taken.count:
                source += 1
                count_max -= taken.count
            found.append((taken.at, taken.count, taken.answers))
        _extend(texts, &scan.texts)
        _extend(rows, &scan.rows)
        return found
    finally:
        free(scan.rows.data)
        free(scan.texts.data)


# ── The fast lane: placing ────────────────────────────────────────────────────────────────────────────────────────────

cdef struct Destination:
    const uint8_t *topic
    Py_ssize_t topic_bytes
    int32_t queue_id
    int64_t queue_offset
    uint32_t topic_hash
    uint8_t *units
    Queued queued

cdef struct Source:
    const uint8_t *data
    Py_ssize_t size
    const uint8_t *host
    Py_ssize_t host_bytes


cdef Row _row_at(const uint8_t *rows, Py_ssize_t index) noexcept nogil:
    cdef Row row
    memcpy(&row, rows + index * ROW_BYTES, ROW_BYTES)
    return row


cdef void _add_key(Arena *keys, uint32_t topic_hash, const uint8_t *at, Py_ssize_t size, int64_t log_offset) noexcept nogil:
    cdef Key key
    cdef int32_t hashed = _hash_utf8(topic_hash, at, size)
    key.hashed = 0 if hashed == -2147483647 - 1 else -hashed if hashed < 0 else hashed
    key.log_offset = log_offset
    memcpy(keys.data + keys.size, &key, KEY_BYTES)
    keys.size += KEY_BYTES


cdef bint _add_keys(Arena *keys, uint32_t topic_hash, const Row *row, const uint8_t *texts, int64_t log_offset) noexcept nogil:
    """Add the unique id and the keys, which blanks separate; `False` without memory."""
    cdef const uint8_t *at = texts + row.keys_at
    cdef const uint8_t *end = at + row.keys_bytes
    cdef const uint8_t *stop
    # A key takes a byte and a blank at least.
    if not _reserve(keys, (2 + row.keys_bytes // 2) * KEY_BYTES):
        return False
    if row.id_bytes:
        _add_key(keys, topic_hash, texts + row.id_at, row.id_bytes, log_offset)
    while at < end:
        stop = <const uint8_t *>memchr(at, 0x20, end - at)
        if stop == NULL:
            stop = end
        if stop > at:
            _add_key(keys, topic_hash, at, stop - at, log_offset)
        at = stop + 1
    return True


cdef const uint8_t *_data_of(data, Py_ssize_t *size) except NULL:
    """Where the bytes of a `bytes` or `bytearray` lie, and how many there are. The caller keeps it alive."""
    if isinstance(data, bytes):
        size[0] = PyBytes_GET_SIZE(data)
        return <const uint8_t *>PyBytes_AS_STRING(data)
    if isinstance(data, bytearray):
        size[0] = PyByteArray_GET_SIZE(data)
        return <const uint8_t *>PyByteArray_AS_STRING(data)
    raise TypeError("rows, texts and buffers are bytes or a bytearray")


def place_sends(
    rows,
    texts,
    list sources not None,
    Targets targets not None,
    *,
    Py_ssize_t first,
    int64_t log_offset,
    Py_ssize_t room,
    int64_t stored_at_ms,
    bytes store_host not None,
    bint append_crc,
    bytes prepared not None=b"",
):
    cdef Py_ssize_t rows_bytes, texts_bytes
    cdef const uint8_t *row_data = _data_of(rows, &rows_bytes)
    cdef const uint8_t *text_data = _data_of(texts, &texts_bytes)
    cdef Py_ssize_t count = rows_bytes // ROW_BYTES
    cdef Py_ssize_t sources_count = len(sources)
    cdef const uint8_t *prepared_data = <const uint8_t *>PyBytes_AS_STRING(prepared)
    cdef Py_ssize_t prepared_bytes = PyBytes_GET_SIZE(prepared)
    cdef Py_ssize_t total = 0
    cdef Py_ssize_t used = 0
    cdef Py_ssize_t size, needed, index, last
    cdef bint is_within_batch = False
    cdef Destination *destinations = NULL
    cdef Destination *destination
    cdef Slot *slot
    cdef Source *origins = NULL
    cdef Record record
    cdef Row row
    cdef Place place
    cdef Arena keys
    cdef uint8_t *out
    cdef uint8_t *place_out
    cdef uint8_t *unit_out
    cdef uint8_t *queue_out
    if rows_bytes % ROW_BYTES or first < 0 or first > count:
        raise ValueError("rows are cut short")
    if prepared_bytes and prepared_bytes != count * 8:
        raise ValueError("there must be a prepared offset for each row")
    memset(&keys, 0, sizeof(Arena))
    targets.begin_call()
    origins = <Source *>malloc((sources_count + 1) * sizeof(Source))
    destinations = <Destination *>malloc((min(count - first, targets.size) + 1) * sizeof(Destination))
    try:
        if origins == NULL or destinations == NULL:
            raise MemoryError
        for index in range(sources_count):
            buffer, born_host = sources[index]  # The list keeps both alive.
            if not isinstance(buffer, bytes) or not isinstance(born_host, bytes):
                raise TypeError("a source is a buffer and a host, both bytes")
            origins[index].data = <const uint8_t *>PyBytes_AS_STRING(buffer)
            origins[index].size = PyBytes_GET_SIZE(buffer)
            origins[index].host = <const uint8_t *>PyBytes_AS_STRING(born_host)
            origins[index].host_bytes = PyBytes_GET_SIZE(born_host)
        record.store_host = <const uint8_t *>PyBytes_AS_STRING(store_host)
        record.store_host_bytes = PyBytes_GET_SIZE(store_host)
        record.stored_at_ms = stored_at_ms
        record.prepared_offset = 0
        record.append_crc = append_crc
        # First how many fit and what they take, then the bytes: nothing is copied twice.
        last = first
        while last < count:
            row = _row_at(row_data, last)
            if row.target >= <uint64_t>targets.size or row.source >= <uint64_t>sources_count:
                raise ValueError("a row points outside of what was scanned")
            if (
                <uint64_t>row.body_at + row.body_bytes > <uint64_t>origins[row.source].size
                or <uint64_t>row.text_at + row.text_bytes > <uint64_t>texts_bytes
                or <uint64_t>row.id_at + row.id_bytes > <uint64_t>texts_bytes
                or <uint64_t>row.keys_at + row.keys_bytes > <uint64_t>texts_bytes
            ):
                raise ValueError("a row points outside of what was scanned")
            slot = &targets.slots[row.target]
            if slot.call != targets.call:
                if slot.tail == NULL:
                    raise ValueError("a row names a queue that is not there")
                slot.call = targets.call
                slot.mark = <uint32_t>used
                _open_destination(&destinations[used], slot, row.target, (<QueueTail>slot.tail).next)
                used += 1
            destination = &destinations[slot.mark]
            _fill_record(&record, &row, destination, &origins[row.source], text_data)
            size = _record_bytes(&record)
            if _all_properties_bytes(&record) > 0x7FFF or size > 0x7FFFFFFF:
                raise OverflowError("a part of the record is too long for its length field")
            needed = size
            if row.marks & MORE and not is_within_batch:
                needed = _together_bytes(row_data, last, count, destination.topic_bytes)
            if total + needed > room:
                break
            is_within_batch = row.marks & MORE != 0
            total += size
            destination.queued.count += 1
            destination.queued.sends += 0 if row.marks & MORE else 1
            destination.queued.record_bytes += size
            last += 1
        if used and destinations[used - 1].queued.count == 0:
            used -= 1  # Its first record did not fit.
        data = PyBytes_FromStringAndSize(NULL, total)
        places = PyBytes_FromStringAndSize(NULL, (last - first) * PLACE_BYTES)
        units = PyBytes_FromStringAndSize(NULL, (last - first) * UNIT_BYTES)
        queues = PyBytes_FromStringAndSize(NULL, used * QUEUE_ROW_BYTES)
        unit_out = <uint8_t *>PyBytes_AS_STRING(units)
        queue_out = <uint8_t *>PyBytes_AS_STRING(queues)
        for index in range(used):
            destination = &destinations[index]
            memcpy(queue_out + index * QUEUE_ROW_BYTES, &destination.queued, QUEUE_ROW_BYTES)
            destination.units = unit_out
            unit_out += <Py_ssize_t>destination.queued.count * UNIT_BYTES
        out = <uint8_t *>PyBytes_AS_STRING(data)
        place_out = <uint8_t *>PyBytes_AS_STRING(places)
        for index in range(first, last):
            row = _row_at(row_data, index)
            destination = &destinations[targets.slots[row.target].mark]
            _fill_record(&record, &row, destination, &origins[row.source], text_data)
            size = _record_bytes(&record)
            record.log_offset = log_offset
            record.queue_offset = destination.queue_offset
            if prepared_bytes:
                memcpy(&record.prepared_offset, prepared_data + index * 8, 8)
            _write_record(&record, out, size)
            out += size
            place.log_offset = log_offset
            place.queue_offset = destination.queue_offset
            place.size = <int32_t>size
            memcpy(place_out, &place, PLACE_BYTES)
            place_out += PLACE_BYTES
            put64(destination.units, <uint64_t>log_offset)
            put32(destination.units + 8, <uint32_t>size)
            put64(destination.units + 12, <uint64_t><int64_t>row.tags_code)
            destination.units += UNIT_BYTES
            if not _add_keys(&keys, destination.topic_hash, &row, text_data, log_offset):
                raise MemoryError
            destination.queue_offset += 1
            log_offset += size
        packed = PyBytes_FromStringAndSize(<const char *>keys.data, keys.size) if keys.size else b""
        for index in range(used):
            destination = &destinations[index]
            (<QueueTail>targets.slots[destination.queued.target].tail).next = destination.queue_offset
        return data, places, queues, units, packed
    finally:
        free(origins)
        free(destinations)
        free(keys.data)


cdef void _open_destination(Destination *destination, const Slot *slot, uint32_t target, int64_t start) noexcept:
    destination.topic = slot.topic
    destination.topic_bytes = slot.topic_bytes
    destination.queue_id = slot.queue_id
    destination.queue_offset = start
    destination.topic_hash = slot.topic_hash
    destination.units = NULL
    memset(&destination.queued, 0, sizeof(Queued))
    destination.queued.target = target
    destination.queued.start = start


cdef Py_ssize_t _together_bytes(
    const uint8_t *rows, Py_ssize_t index, Py_ssize_t count, Py_ssize_t topic_bytes
) noexcept nogil:
    """What the batch that begins with a row may take."""
    cdef Py_ssize_t total = 0
    cdef Row row
    while index < count:
        row = _row_at(rows, index)
        total += TOGETHER_BYTES + <Py_ssize_t>row.body_bytes + 3 * topic_bytes + row.text_bytes
        if not row.marks & MORE:
            break
        index += 1
    return total


cdef void _fill_record(
    Record *record, const Row *row, const Destination *destination, const Source *source, const uint8_t *texts
) noexcept nogil:
    record.body = source.data + row.body_at
    record.body_bytes = row.body_bytes
    record.topic = destination.topic
    record.topic_bytes = destination.topic_bytes
    record.properties = texts + row.text_at
    record.properties_bytes = row.text_bytes
    record.queue_id = destination.queue_id
    record.flag = row.flag
    record.flags = (
        (row.flags & ~V6_BITS)
        | (0x10 if source.host_bytes == 20 else 0)
        | (0x20 if record.store_host_bytes == 20 else 0)
    )
    record.retry_count = row.retry_count
    record.born_at_ms = row.born_at_ms
    record.born_host = source.host
    record.born_host_bytes = source.host_bytes


# ── The fast lane: the key index ──────────────────────────────────────────────────────────────────────────────────────


def chain_keys(
    table, bytes keys not None, *, Py_ssize_t at, Py_ssize_t slots, int64_t number, int32_t seconds
):
    cdef const uint8_t[::1] view = table
    cdef Py_ssize_t count = PyBytes_GET_SIZE(keys) // KEY_BYTES
    cdef Py_ssize_t index, place
    cdef Py_ssize_t heads_count = 0
    cdef Py_ssize_t cells = 16
    cdef Py_ssize_t fresh = 0
    cdef const uint8_t *key_data = <const uint8_t *>PyBytes_AS_STRING(keys)
    cdef const uint8_t *slot_data
    cdef uint8_t *out
    cdef int32_t older
    cdef uint32_t slot
    cdef Key key
    cdef Head *heads = NULL
    cdef bint is_negative = False
    cdef int32_t *table_of_heads = NULL  # open addressing: number of the head with this slot and 1, 0 for none
    if slots < 1 or slots > 0x7FFFFFFF or at < 0 or at > view.shape[0] or slots * 4 > view.shape[0] - at:
        raise ValueError("the slots do not fit the table, or the keys are cut short")
    if PyBytes_GET_SIZE(keys) % KEY_BYTES:
        raise ValueError("the slots do not fit the table, or the keys are cut short")
    if number < 1 or number + count > 0x7FFFFFFF:
        raise ValueError("the numbers of the entries do not fit")
    while cells < 2 * count:
        cells *= 2
    slot_data = &view[at]
    entries = PyBytes_FromStringAndSize(NULL, count * ENTRY_BYTES)
    out = <uint8_t *>PyBytes_AS_STRING(entries)
    heads = <Head *>malloc((count + 1) * sizeof(Head))
    table_of_heads = <int32_t *>malloc(cells * sizeof(int32_t))
    try:
        if heads == NULL or table_of_heads == NULL:
            raise MemoryError
        memset(table_of_heads, 0, cells * sizeof(int32_t))
        with nogil:  # The table may be a map of a file, whose pages may have to be read.
            for index in range(count):
                memcpy(&key, key_data + index * KEY_BYTES, KEY_BYTES)
                if key.hashed < 0:
                    is_negative = True
                    break
                slot = <uint32_t>key.hashed % <uint32_t>slots
                place = (slot * <uint32_t>2654435761U) & <uint32_t>(cells - 1)
                while table_of_heads[place] and heads[table_of_heads[place] - 1].slot != slot:
                    place = (place + 1) & (cells - 1)
                if table_of_heads[place]:
                    older = <int32_t>heads[table_of_heads[place] - 1].number
                else:
                    older = <int32_t>get32(slot_data + <Py_ssize_t>slot * 4)
                    if older <= 0 or older >= number:
                        older = 0
                        fresh += 1
                    heads[heads_count].slot = slot
                    heads_count += 1
                    table_of_heads[place] = <int32_t>heads_count
                heads[table_of_heads[place] - 1].number = <uint32_t>number
                put32(out, <uint32_t>key.hashed)
                put64(out + 4, <uint64_t>key.log_offset)
                put32(out + 12, <uint32_t>seconds)
                put32(out + 16, <uint32_t>older)
                out += ENTRY_BYTES
                number += 1
        if is_negative:
            raise ValueError("a hash is negative")
        return entries, PyBytes_FromStringAndSize(<const char *>heads, heads_count * HEAD_BYTES), fresh
    finally:
        free(heads)
        free(table_of_heads)


def link_heads(table, bytes heads not None, *, Py_ssize_t at):
    cdef uint8_t[::1] view = table
    cdef const uint8_t *data = <const uint8_t *>PyBytes_AS_STRING(heads)
    cdef Py_ssize_t count = PyBytes_GET_SIZE(heads) // HEAD_BYTES
    cdef Py_ssize_t index
    cdef bint is_outside = False
    cdef Head head
    if PyBytes_GET_SIZE(heads) % HEAD_BYTES:
        raise ValueError("the heads are cut short")
    if at < 0 or at > view.shape[0]:
        raise ValueError("a slot lies outside of the table")
    with nogil:
        for index in range(count):
            memcpy(&head, data + index * HEAD_BYTES, HEAD_BYTES)
            if <int64_t>head.slot * 4 + 4 > view.shape[0] - at:
                is_outside = True
                break
            put32(&view[at + <Py_ssize_t>head.slot * 4], head.number)
    if is_outside:
        raise ValueError("a slot lies outside of the table")


# ── The fast lane: pulling ────────────────────────────────────────────────────────────────────────────────────────────


cdef enum:
    PULL_BLOCK_C = 512
    PULL_COMMITS = 1

cdef struct Pull:
    Py_ssize_t end  # of its frame
    uint32_t kind
    int32_t request_id
    int64_t start
    int64_t count
    int64_t committed  # -1 for none


cdef bytes _read_pull(const uint8_t *data, Py_ssize_t size, Py_ssize_t at, Py_ssize_t frame_bytes_max, Pull *pull):
    """The key of the plain pull that begins there, which is filled in; `None` when there is none."""
    cdef Py_ssize_t length, header_bytes, key_bytes
    cdef uint32_t mark
    cdef Header header
    cdef Cursor cursor
    cdef int64_t queue_id, flags, version, suspend_ms, bytes_max
    cdef int field
    cdef uint8_t *out
    cdef bytes key
    if size - at < 8:
        return None
    length = <int32_t>get32(data + at)
    mark = get32(data + at + 4)
    header_bytes = mark & 0xFFFFFF
    # A pull has no body: the header ends with the frame.
    if length + 4 > frame_bytes_max or length + 4 > size - at or header_bytes != length - 4 or mark >> 24 > 1:
        return None
    header.is_pull = True
    cursor.at = data + at + 8
    cursor.end = cursor.at + header_bytes
    if not _read_header(&cursor, &header, mark >> 24):
        return None
    if (header.code != 11 and header.code != 361) or header.flag != 0 or header.seen & 0x187 != 0x187:
        return None
    flags = version = pull.committed = suspend_ms = bytes_max = 0
    if not (
        _number_of(&header, 2, &queue_id)
        and _number_of(&header, 3, &flags)
        and _number_of(&header, 6, &version, True)
        and _number_of(&header, 7, &pull.start, True)
        and _number_of(&header, 8, &pull.count)
        and _number_of(&header, 9, &pull.committed, True)
        and _number_of(&header, 10, &suspend_ms, True)
        and _number_of(&header, 11, &bytes_max)
    ):
        return None
    if not flags & PULL_COMMITS:
        pull.committed = -1
    key_bytes = 0
    for field in range(7):
        key_bytes += 1 + (header.values[field].size if header.seen & (1U << field) else 0)
    key = PyBytes_FromStringAndSize(NULL, key_bytes)
    out = <uint8_t *>PyBytes_AS_STRING(key)
    for field in range(7):
        out[0] = 1 if header.seen & (1U << field) else 0
        out += 1
        if header.seen & (1U << field):
            memcpy(out, header.values[field].at, header.values[field].size)
            out += header.values[field].size
    pull.end = at + 4 + length
    pull.kind = mark >> 24
    pull.request_id = <int32_t>header.request_id
    return key


cdef tuple _pull_row(Py_ssize_t at, const Pull *pull, bytes key):
    return at, pull.request_id, <int>pull.kind, key, pull.start, pull.count, pull.committed


def scan_pulls(bytes buffer not None, Py_ssize_t at, *, Py_ssize_t count_max, Py_ssize_t frame_bytes_max):
    cdef const uint8_t *data = <const uint8_t *>PyBytes_AS_STRING(buffer)
    cdef Py_ssize_t size = PyBytes_GET_SIZE(buffer)
    cdef Pull pull
    cdef bytes key
    cdef list pulls = []
    if at < 0:
        raise ValueError("the position lies outside of the buffer")
    while len(pulls) < count_max:
        key = _read_pull(data, size, at, frame_bytes_max, &pull)
        if key is None:
            break
        pulls.append(_pull_row(at, &pull, key))
        at = pull.end
    return at, pulls


cdef class PullWindow:
    cdef readonly int64_t first, stop, log_start, lowest
    cdef readonly bint is_final, is_cold
    cdef readonly bytes units
    cdef Py_buffer _log

    def __cinit__(
        self,
        int64_t first,
        bytes units not None,
        log,
        *,
        int64_t log_start,
        int64_t lowest,
        bint is_final=False,
        bint is_cold=False,
    ):
        if PyBytes_GET_SIZE(units) % UNIT_BYTES or first < 0 or first > <int64_t>1 << 62:
            raise ValueError("queue entries are cut short, or do not begin at an offset")
        PyObject_GetBuffer(log, &self._log, PyBUF_SIMPLE)
        self.first = first
        self.stop = first + PyBytes_GET_SIZE(units) // UNIT_BYTES
        self.units = units
        self.log_start = log_start
        self.lowest = lowest
        self.is_final = is_final
        self.is_cold = is_cold

    def __dealloc__(self):
        PyBuffer_Release(&self._log)  # Does nothing when it was never taken.

    @property
    def log(self):
        return <object>self._log.obj


cdef class PullPlan:
    cdef readonly object about
    cdef public object queue
    cdef public dict windows
    cdef public int64_t times, messages, record_bytes, start, committed

    def __init__(self, about):
        self.about = about
        self.queue = None
        self.windows = {}
        self.clear()

    def clear(self):
        self.times = self.messages = self.record_bytes = self.start = 0
        self.committed = -1


cdef struct Answer:
    Py_ssize_t head_bytes
    const uint8_t *unit
    Py_ssize_t count
    const uint8_t *source
    int64_t log_start
    int64_t record_bytes


def answer_pulls(
    list reads not None,
    dict plans not None,
    provide,
    *,
    int64_t count_max,
    Py_ssize_t cold_max,
    int64_t bytes_max,
    Py_ssize_t request_bytes_max,
    Py_ssize_t frame_bytes_max,
    Py_ssize_t total_bytes_max,
    tuple json not None,
    tuple binary not None,
):
    cdef Pieces pieces
    cdef Pull pull
    cdef Answer *answer
    cdef PullPlan plan
    cdef PullWindow window
    cdef PyObject *found
    cdef Arena heads, answers
    cdef Py_ssize_t number, at, after, provided_at, limit, size, all_bytes, taken
    cdef Py_ssize_t total = 0
    cdef Py_ssize_t cold = 0
    cdef int64_t min_offset, max_offset, wanted, record_bytes
    cdef const uint8_t *data
    cdef const uint8_t *head
    cdef uint8_t *out
    cdef bytes buffer, key, frames
    cdef list ends = []
    cdef list replies = []
    cdef list used = []
    cdef list held = []  # Windows that answers point into.
    _pieces_of(json, binary, &pieces)
    memset(&heads, 0, sizeof(Arena))
    memset(&answers, 0, sizeof(Arena))
    try:
        for number in range(len(reads)):
            owner, buffer_given, at, limit = reads[number]
            buffer = buffer_given
            if buffer is None:
                raise TypeError("a read has no buffer")
            if at < 0:
                raise ValueError("the position lies outside of the buffer")
            data = <const uint8_t *>PyBytes_AS_STRING(buffer)
            size = PyBytes_GET_SIZE(buffer)
            heads.size = answers.size = all_bytes = 0
            provided_at = -1
            while limit > 0 and total <= total_bytes_max:
                key = _read_pull(data, size, at, request_bytes_max, &pull)
                if key is None:
                    break
                found = PyDict_GetItemWithError(plans, key)
                plan = None
                window = None
                if found != NULL:
                    if <object>found is None:
                        break
                    plan = <PullPlan?><object>found
                    if plan.queue is not None:
                        min_offset = plan.queue.min_offset
                        max_offset = plan.queue.end
                        if pull.start < min_offset or pull.start < 0 or pull.start >= max_offset:
                            break
                        wanted = min(max(pull.count, 1), count_max, max_offset - pull.start)
                        found = PyDict_GetItemWithError(plan.windows, pull.start // PULL_BLOCK_C)
                        if found != NULL:
                            window = <PullWindow?><object>found
                            if (
                                pull.start < window.first
                                or pull.start >= window.stop
                                or (
                                    window.stop - pull.start < wanted
                                    and not (window.is_final and pull.start == window.first)
                                )
                                or (window.is_cold and cold >= cold_max and provided_at != at)
                            ):
                                window = None
                if window is None:
                    if provided_at == at:
                        break
                    # Windows that answers point into are held; of all else nothing is kept over this call.
                    given = provide(number, _pull_row(at, &pull, key), cold)
                    if given is None:
                        break
                    after = given
                    if after == at:
                        provided_at = at
                    elif after < at or after > size:
                        raise ValueError("the position lies outside of the buffer")
                    else:
                        at = after
                        limit -= 1
                    continue
                if not _reserve(&answers, sizeof(Answer)):
                    raise MemoryError
                answer = <Answer *>(answers.data + answers.size)
                answer.unit = <const uint8_t *>PyBytes_AS_STRING(window.units) + (pull.start - window.first) * UNIT_BYTES
                answer.source = <const uint8_t *>window._log.buf
                answer.log_start = window.log_start
                taken = _fitting(
                    answer.unit,
                    <Py_ssize_t>max(min(wanted, window.stop - pull.start), 0),
                    window._log.len,
                    window.log_start,
                    window.lowest,
                    bytes_max,
                    &record_bytes,
                )
                if taken <= 0 or record_bytes + pieces.size + 128 > frame_bytes_max:
                    break
                answer.count = taken
                answer.record_bytes = record_bytes
                answer.head_bytes = _add_pull_head(
                    &heads, &pieces, &pull, next_offset=pull.start + taken, min_offset=min_offset, max_offset=max_offset,
                    record_bytes=record_bytes,
                )
                if answer.head_bytes < 0:
                    raise MemoryError
                answers.size += sizeof(Answer)
                held.append(window)
                all_bytes += answer.head_bytes + <Py_ssize_t>record_bytes
                total += answer.head_bytes + <Py_ssize_t>record_bytes
                limit -= 1
                if window.is_cold and provided_at == at:
                    cold_max -= 1
                elif window.is_cold:
                    cold += 1
                if plan.times == 0:
                    used.append(plan)
                plan.times += 1
                plan.messages += taken
                plan.record_bytes += record_bytes
                plan.start = pull.start
                if pull.committed >= 0:
                    plan.committed = pull.committed
                at = pull.end
            ends.append(at)
            if answers.size == 0:
                continue
            frames = PyBytes_FromStringAndSize(NULL, all_bytes)
            out = <uint8_t *>PyBytes_AS_STRING(frames)
            head = heads.data
            answer = <Answer *>answers.data
            while <uint8_t *>answer < answers.data + answers.size:
                memcpy(out, head, answer.head_bytes)
                out += answer.head_bytes
                head += answer.head_bytes
                _copy_records(answer.unit, answer.count, answer.source, answer.log_start, out)
                out += answer.record_bytes
                answer += 1
            held.clear()
            replies.append((owner, frames, 0))
        return ends, replies, used, cold
    finally:
        free(heads.data)
        free(answers.data)


cdef struct Pieces:
    Span json[5]
    Span binary[6]
    Py_ssize_t size


cdef int _pieces_of(tuple json, tuple binary, Pieces *pieces) except -1:
    """What stands around the numbers of a reply, which the tuples keep alive."""
    cdef Py_ssize_t index
    if len(json) != 5 or len(binary) != 6:
        raise ValueError("a reply needs 5 or 6 pieces")
    pieces.size = 0
    for index in range(5):
        _span_of(json[index], &pieces.json[index])
        pieces.size += pieces.json[index].size
    for index in range(6):
        _span_of(binary[index], &pieces.binary[index])
        pieces.size += pieces.binary[index].size
    return 0


cdef Py_ssize_t _add_pull_head(
    Arena *out,
    const Pieces *pieces,
    const Pull *pull,
    int64_t next_offset,
    int64_t min_offset,
    int64_t max_offset,
    int64_t record_bytes,
) noexcept nogil:
    """Add what comes before the records in a frame; returns its size, -1 without memory."""
    cdef Py_ssize_t start = out.size
    cdef Py_ssize_t fields_at, part
    cdef uint8_t digits[4][20]
    cdef Py_ssize_t sizes[4]
    # Pieces of both kinds, four numbers and some lengths are more than any one header takes.
    if not _reserve(out, pieces.size + 128):
        return -1
    sizes[0] = _digits(next_offset, digits[0])
    sizes[1] = _digits(min_offset, digits[1])
    sizes[2] = _digits(max_offset, digits[2])
    out.size += 8
    if pull.kind:
        _add(out, pieces.binary[0].at, pieces.binary[0].size)
        _add32(out, <uint32_t>pull.request_id)
        _add(out, pieces.binary[1].at, pieces.binary[1].size)
        fields_at = out.size
        out.size += 4
        _add(out, pieces.binary[2].at, pieces.binary[2].size)
        for part in range(3):
            _add32(out, <uint32_t>sizes[part])
            _add(out, digits[part], sizes[part])
            _add(out, pieces.binary[3 + part].at, pieces.binary[3 + part].size)
        put32(out.data + fields_at, <uint32_t>(out.size - fields_at - 4))
    else:
        sizes[3] = _digits(pull.request_id, digits[3])
        _add(out, pieces.json[0].at, pieces.json[0].size)
        for part in range(4):
            _add(out, digits[part], sizes[part])
            _add(out, pieces.json[1 + part].at, pieces.json[1 + part].size)
    put32(out.data + start, <uint32_t>(out.size - start - 4 + record_bytes))
    put32(out.data + start + 4, (<uint32_t>(1 if pull.kind else 0) << 24) | <uint32_t>(out.size - start - 8))
    return out.size - start


cdef void _copy_records(
    const uint8_t *unit, Py_ssize_t count, const uint8_t *source, int64_t log_start, uint8_t *out
) noexcept nogil:
    """Copy the records that entries name, which were seen to lie in the log; neighbours at once."""
    cdef Py_ssize_t index
    cdef int64_t at, size
    cdef int64_t begin = 0
    cdef int64_t end = 0
    for index in range(count):
        at = _get64(unit + index * UNIT_BYTES)
        size = <int32_t>get32(unit + index * UNIT_BYTES + 8)
        if at != end:
            memcpy(out, source + (begin - log_start) if end > begin else source, <size_t>(end - begin))
            out += end - begin
            begin = at
        end = at + size
    memcpy(out, source + (begin - log_start) if end > begin else source, <size_t>(end - begin))


def gather_pulls(
    list jobs not None,
    *,
    int64_t bytes_max,
    Py_ssize_t frame_bytes_max,
    Py_ssize_t total_bytes_max,
    tuple json not None,
    tuple binary not None,
):
    cdef Py_ssize_t units_count, taken, head_bytes
    cdef Py_ssize_t all_bytes = 0
    cdef int64_t total, log_start, lowest, start, min_offset, max_offset
    cdef Pieces pieces
    cdef Pull pull
    cdef Py_buffer log
    cdef const uint8_t *unit
    cdef Arena out
    cdef list frames = []
    cdef list taken_of = []
    cdef bytes frame
    _pieces_of(json, binary, &pieces)
    memset(&out, 0, sizeof(Arena))
    try:
        for job in jobs:
            if all_bytes > total_bytes_max:
                break
            pull.request_id, pull.kind, units, mapped, log_start, lowest, start, min_offset, max_offset = job
            if not isinstance(units, bytes) or PyBytes_GET_SIZE(units) % UNIT_BYTES:
                raise ValueError("queue entries are cut short")
            unit = <const uint8_t *>PyBytes_AS_STRING(units)
            units_count = PyBytes_GET_SIZE(units) // UNIT_BYTES
            PyObject_GetBuffer(mapped, &log, PyBUF_SIMPLE)
            try:
                taken = _fitting(unit, units_count, log.len, log_start, lowest, bytes_max, &total)
                if taken <= 0 or total + pieces.size + 128 > frame_bytes_max:
                    break
                out.size = 0
                head_bytes = _add_pull_head(
                    &out, &pieces, &pull, next_offset=start + taken, min_offset=min_offset, max_offset=max_offset,
                    record_bytes=total,
                )
                if head_bytes < 0:
                    raise MemoryError
                frame = PyBytes_FromStringAndSize(NULL, head_bytes + <Py_ssize_t>total)
                memcpy(PyBytes_AS_STRING(frame), out.data, head_bytes)
                _copy_records(
                    unit, taken, <const uint8_t *>log.buf, log_start, <uint8_t *>PyBytes_AS_STRING(frame) + head_bytes
                )
            finally:
                PyBuffer_Release(&log)
            frames.append(frame)
            all_bytes += PyBytes_GET_SIZE(frame)
            taken_of.append((taken, total))
        return frames, taken_of
    finally:
        free(out.data)


# ── The fast lane: answering ──────────────────────────────────────────────────────────────────────────────────────────

cdef Py_ssize_t _digits(int64_t number, uint8_t *out) noexcept nogil:
    """Decimal text of a number, up to 20 bytes."""
    cdef uint8_t reversed_digits[20]
    cdef uint64_t rest = <uint64_t>number if number >= 0 else 0 - <uint64_t>number
    cdef Py_ssize_t count = 0
    cdef Py_ssize_t size = 0
    if number < 0:
        out[0] = 0x2D
        size = 1
    while True:
        reversed_digits[count] = <uint8_t>(48 + rest % 10)
        count += 1
        rest //= 10
        if rest == 0:
            break
    while count > 0:
        count -= 1
        out[size] = reversed_digits[count]
        size += 1
    return size


cdef void _hex(const uint8_t *at, Py_ssize_t size, uint8_t *out) noexcept nogil:
    cdef Py_ssize_t index
    for index in range(size):
        out[2 * index] = <uint8_t>((<const char *>b"0123456789ABCDEF")[at[index] >> 4])
        out[2 * index + 1] = <uint8_t>((<const char *>b"0123456789ABCDEF")[at[index] & 15])


cdef inline void _add(Arena *arena, const uint8_t *at, Py_ssize_t size) noexcept nogil:
    memcpy(arena.data + arena.size, at, size)
    arena.size += size


cdef inline void _add32(Arena *arena, uint32_t value) noexcept nogil:
    put32(arena.data + arena.size, value)
    arena.size += 4


def encode_send_replies(
    rows,
    bytes places not None,
    texts,
    Targets targets not None,
    *,
    Py_ssize_t sources,
    bytes host not None,
    tuple json not None,
    tuple binary not None,
    tuple batch_json not None,
    tuple batch_binary not None,
):
    cdef Py_ssize_t rows_bytes, text_bytes
    cdef const uint8_t *row_data = _data_of(rows, &rows_bytes)
    cdef const uint8_t *place_data = <const uint8_t *>PyBytes_AS_STRING(places)
    cdef const uint8_t *text_data = _data_of(texts, &text_bytes)
    cdef Py_ssize_t count = min(rows_bytes // ROW_BYTES, PyBytes_GET_SIZE(places) // PLACE_BYTES)
    cdef Py_ssize_t pieces_bytes = 0
    cdef Py_ssize_t source = 0
    cdef Py_ssize_t index, part, start, fields_at, host_bytes
    cdef Span pieces[26]  # JSON, binary, JSON of a batch, binary of a batch
    cdef Span *around
    cdef Span values[4]
    cdef Span request
    cdef int parts
    cdef uint8_t offset_id[56]
    cdef uint8_t queue_text[20]
    cdef uint8_t offset_text[20]
    cdef uint8_t request_text[20]
    cdef uint8_t packed[8]
    cdef Arena out, ids
    cdef int64_t batch_offset = 0
    cdef Row row
    cdef Place place
    cdef list frames = []
    if rows_bytes % ROW_BYTES or PyBytes_GET_SIZE(places) % PLACE_BYTES:
        raise ValueError("rows or places are cut short")
    if len(json) != 6 or len(binary) != 7 or len(batch_json) != 5 or len(batch_binary) != 6:
        raise ValueError("a reply needs 6 or 7 pieces, that of a batch 5 or 6")
    if len(host) not in (8, 20):
        raise ValueError("the host is not packed")
    index = 0
    for piece in (*json, *binary, *batch_json, *batch_binary):
        _span_of(piece, &pieces[index])
        pieces_bytes += pieces[index].size
        index += 1
    host_bytes = PyBytes_GET_SIZE(host)
    _hex(<const uint8_t *>PyBytes_AS_STRING(host), host_bytes, offset_id)
    values[1].at = queue_text
    values[2].at = offset_text
    request.at = request_text
    memset(&out, 0, sizeof(Arena))
    memset(&ids, 0, sizeof(Arena))
    try:
        for index in range(count):
            row = _row_at(row_data, index)
            memcpy(&place, place_data + index * PLACE_BYTES, PLACE_BYTES)
            if row.target >= <uint64_t>targets.size or <uint64_t>row.id_at + row.id_bytes > <uint64_t>text_bytes:
                raise ValueError("a row points outside of what was scanned, or the rows are in disorder")
            if row.source < <uint64_t>source or row.source >= <uint64_t>sources:
                raise ValueError("a row points outside of what was scanned, or the rows are in disorder")
            while source < <Py_ssize_t>row.source:
                frames.append(_taken(&out))
                source += 1
            put64(packed, <uint64_t>place.log_offset)
            _hex(packed, 8, offset_id + 2 * host_bytes)
            if row.marks & BATCH:
                if not _reserve(&ids, 57):
                    raise MemoryError
                if ids.size == 0:
                    batch_offset = place.queue_offset
                    values[3].size = row.marks >> BATCH_ID_SHIFT
                    if row.text_at < <uint64_t>values[3].size or row.text_at > <uint64_t>text_bytes:
                        raise ValueError("a row points outside of what was scanned, or the rows are in disorder")
                    values[3].at = text_data + row.text_at - values[3].size
                else:
                    ids.data[ids.size] = 0x2C
                    ids.size += 1
                _add(&ids, offset_id, 2 * host_bytes + 16)
                if row.marks & MORE:
                    continue
                values[0].at = ids.data
                values[0].size = ids.size
                values[2].size = _digits(batch_offset, offset_text)
                if values[3].size:
                    around = &pieces[6 if row.marks & BINARY else 0]
                    parts = 4
                else:
                    around = &pieces[18 if row.marks & BINARY else 13]
                    parts = 3
            else:
                values[0].at = offset_id
                values[0].size = 2 * host_bytes + 16
                values[2].size = _digits(place.queue_offset, offset_text)
                values[3].at = text_data + row.id_at
                values[3].size = row.id_bytes
                around = &pieces[6 if row.marks & BINARY else 0]
                parts = 4
            ids.size = 0
            if row.marks & ONE_WAY:
                continue
            # All pieces, three numbers and some lengths are more than any one reply takes beside its ids.
            if not _reserve(&out, pieces_bytes + values[0].size + values[3].size + 192):
                raise MemoryError
            values[1].size = _digits(targets.slots[row.target].queue_id, queue_text)
            start = out.size
            out.size += 8
            if row.marks & BINARY:
                _add(&out, around[0].at, around[0].size)
                _add32(&out, <uint32_t>row.request_id)
                _add(&out, around[1].at, around[1].size)
                fields_at = out.size
                out.size += 4
                _add(&out, around[2].at, around[2].size)
                for part in range(parts):
                    _add32(&out, <uint32_t>values[part].size)
                    _add(&out, values[part].at, values[part].size)
                    _add(&out, around[3 + part].at, around[3 + part].size)
                put32(out.data + fields_at, <uint32_t>(out.size - fields_at - 4))
            else:
                request.size = _digits(row.request_id, request_text)
                _add(&out, around[0].at, around[0].size)
                for part in range(parts):
                    _add(&out, values[part].at, values[part].size)
                    _add(&out, around[1 + part].at, around[1 + part].size)
                _add(&out, request.at, request.size)
                _add(&out, around[1 + parts].at, around[1 + parts].size)
            put32(out.data + start, <uint32_t>(out.size - start - 4))
            put32(out.data + start + 4, (<uint32_t>(1 if row.marks & BINARY else 0) << 24) | <uint32_t>(out.size - start - 8))
        while source < sources:
            frames.append(_taken(&out))
            source += 1
        return frames
    finally:
        free(out.data)
        free(ids.data)


cdef bytes _taken(Arena *arena):
    """What an arena holds, which is empty then."""
    cdef Py_ssize_t size = arena.size
    arena.size = 0
    return PyBytes_FromStringAndSize(<const char *>arena.data, size) if size else b""


cdef int _span_of(piece, Span *span) except -1:
    if not isinstance(piece, bytes):
        raise TypeError("a piece of a reply is not bytes")
    span.at = <const uint8_t *>PyBytes_AS_STRING(piece)  # The caller's tuple keeps it alive.
    span.size = PyBytes_GET_SIZE(piece)
    return 0
