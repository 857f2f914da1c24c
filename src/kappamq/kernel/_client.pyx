# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""The functions of `client_reference.py`, compiled. That module says what they do; this one may only be faster.

Columns and replies are not of our making: every read is checked against the end of its buffer before it happens.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.unicode cimport PyUnicode_DecodeASCII
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcmp, memcpy, memset

INTERFACE = 1

cdef enum:
    ITEM_HEAD_BYTES = 20
    TEXT_BYTES_MAX = 0x7FFF
    BLOCK_BYTES = 128
    HASH_BYTES = 12
    ID_DIGITS = 32

cdef extern from *:
    """
    static inline void kappa_store32(unsigned char *at, unsigned int v) {
        at[0] = (unsigned char)(v >> 24); at[1] = (unsigned char)(v >> 16);
        at[2] = (unsigned char)(v >> 8); at[3] = (unsigned char)v;
    }
    static inline unsigned int kappa_load32(const unsigned char *at) {
        return ((unsigned int)at[0] << 24) | ((unsigned int)at[1] << 16) | ((unsigned int)at[2] << 8) | at[3];
    }
    static inline unsigned long long kappa_little64(const unsigned char *at) {
        return (unsigned long long)at[0] | ((unsigned long long)at[1] << 8) | ((unsigned long long)at[2] << 16)
            | ((unsigned long long)at[3] << 24) | ((unsigned long long)at[4] << 32)
            | ((unsigned long long)at[5] << 40) | ((unsigned long long)at[6] << 48)
            | ((unsigned long long)at[7] << 56);
    }
    """
    void put32 "kappa_store32"(uint8_t *at, uint32_t value) noexcept nogil
    uint32_t get32 "kappa_load32"(const uint8_t *at) noexcept nogil
    uint64_t little64 "kappa_little64"(const uint8_t *at) noexcept nogil


# ── Columns ─────────────────────────────────────────────────────────────────────────────────────────────────────────

cdef int32_t _offset(const uint8_t *offsets, Py_ssize_t row) noexcept nogil:
    cdef int32_t value
    memcpy(&value, offsets + row * 4, 4)
    return value


cdef int _check_rows(const uint8_t[::1] offsets, Py_ssize_t data_bytes, Py_ssize_t start, Py_ssize_t count) except -1:
    cdef Py_ssize_t row, limit = offsets.shape[0] // 4
    cdef int32_t last = 0, end
    if start < 0 or count < 0 or count > limit or start >= limit - count:
        raise ValueError("the rows lie outside of their column")
    for row in range(start, start + count + 1):
        end = _offset(&offsets[0], row)
        if end < last or end > data_bytes:
            raise ValueError("the offsets of a column do not ascend within its data")
        last = end
    return 0


# ── Sends ───────────────────────────────────────────────────────────────────────────────────────────────────────────────

cdef Py_ssize_t _escaped_bytes(const uint8_t *at, Py_ssize_t size) noexcept nogil:
    cdef Py_ssize_t number, total = size
    for number in range(size):
        if at[number] < 32 or at[number] == 34 or at[number] == 92:
            total += 5
    return total


cdef uint8_t *_escape(const uint8_t *at, Py_ssize_t size, uint8_t *into) noexcept nogil:
    """Write a JSON string without its quotes; returns the position behind it."""
    cdef Py_ssize_t number
    cdef uint8_t octet, low
    for number in range(size):
        octet = at[number]
        if octet < 32 or octet == 34 or octet == 92:
            memcpy(into, b"\\u00", 4)
            low = octet & 15
            into[4] = 48 + (octet >> 4)
            into[5] = 48 + low if low < 10 else 87 + low
            into += 6
        else:
            into[0] = octet
            into += 1
    return into


cdef int _digits_of(int32_t value, uint8_t *digits) noexcept nogil:
    """Write a number of at most 10 digits from the end of `digits` on; returns how many there are."""
    cdef int count = 0
    while True:
        count += 1
        digits[10 - count] = 48 + value % 10
        value //= 10
        if value == 0:
            return count


def encode_sends(texts, bodies, *, Py_ssize_t start, Py_ssize_t count, templates, int64_t request_id):
    cdef const uint8_t[::1] text_offsets = texts[0]
    cdef const uint8_t[::1] text_data = texts[1]
    cdef const uint8_t[::1] body_offsets = bodies[0]
    cdef const uint8_t[::1] body_data = bodies[1]
    cdef const uint8_t *text = &text_data[0] if text_data.shape[0] else NULL
    cdef const uint8_t *body = &body_data[0] if body_data.shape[0] else NULL
    cdef list pieces = list(templates)
    cdef Py_ssize_t row, size, header_bytes, text_bytes, body_bytes, total = 0, template_bytes = 0
    cdef uint8_t digits[10]
    cdef int digit_count
    cdef uint8_t *frame
    cdef uint8_t *at
    cdef bytes before, between, after, frames
    _check_rows(text_offsets, text_data.shape[0], start, count)
    _check_rows(body_offsets, body_data.shape[0], start, count)
    if not pieces or not 0 <= request_id <= 0x7FFFFFFF - count:
        raise ValueError("there is no template, or the request ids do not fit")
    for before, between, after in pieces:
        template_bytes = max(template_bytes, len(before) + len(between) + len(after))
    for row in range(start, start + count):
        size = _offset(&text_offsets[0], row)
        text_bytes = _offset(&text_offsets[0], row + 1) - size
        total += _escaped_bytes(text + size, text_bytes) + template_bytes + 18
    total += _offset(&body_offsets[0], start + count) - _offset(&body_offsets[0], start)
    frames = PyBytes_FromStringAndSize(NULL, total)
    frame = <uint8_t *>PyBytes_AS_STRING(frames)
    for row in range(count):
        before, between, after = pieces[row % len(pieces)]
        size = _offset(&text_offsets[0], start + row)
        text_bytes = _offset(&text_offsets[0], start + row + 1) - size
        at = _copied(before, frame + 8)
        at = _escape(text + size, text_bytes, at)
        at = _copied(between, at)
        digit_count = _digits_of(<int32_t>(request_id + row), digits)
        memcpy(at, digits + 10 - digit_count, digit_count)
        at = _copied(after, at + digit_count)
        header_bytes = at - frame - 8
        size = _offset(&body_offsets[0], start + row)
        body_bytes = _offset(&body_offsets[0], start + row + 1) - size
        if body_bytes:
            memcpy(at, body + size, body_bytes)
        put32(frame, <uint32_t>(header_bytes + body_bytes + 4))
        put32(frame + 4, <uint32_t>header_bytes)
        frame = at + body_bytes
    return frames[: frame - <uint8_t *>PyBytes_AS_STRING(frames)]


cdef uint8_t *_copied(bytes piece, uint8_t *into) noexcept:
    memcpy(into, PyBytes_AS_STRING(piece), PyBytes_GET_SIZE(piece))
    return into + PyBytes_GET_SIZE(piece)


# ── Batches ─────────────────────────────────────────────────────────────────────────────────────────────────────────

def encode_batch_rows(texts, bodies, *, Py_ssize_t start, Py_ssize_t count):
    cdef const uint8_t[::1] text_offsets = texts[0]
    cdef const uint8_t[::1] text_data = texts[1]
    cdef const uint8_t[::1] body_offsets = bodies[0]
    cdef const uint8_t[::1] body_data = bodies[1]
    cdef const uint8_t *text = &text_data[0] if text_data.shape[0] else NULL
    cdef const uint8_t *body = &body_data[0] if body_data.shape[0] else NULL
    cdef Py_ssize_t row, text_at, text_bytes, body_at, body_bytes, total
    cdef bytes encoded
    cdef uint8_t *at
    _check_rows(text_offsets, text_data.shape[0], start, count)
    _check_rows(body_offsets, body_data.shape[0], start, count)
    total = count * (ITEM_HEAD_BYTES + 2)
    total += _offset(&text_offsets[0], start + count) - _offset(&text_offsets[0], start)
    total += _offset(&body_offsets[0], start + count) - _offset(&body_offsets[0], start)
    encoded = PyBytes_FromStringAndSize(NULL, total)
    at = <uint8_t *>PyBytes_AS_STRING(encoded)
    for row in range(start, start + count):
        text_at = _offset(&text_offsets[0], row)
        text_bytes = _offset(&text_offsets[0], row + 1) - text_at
        body_at = _offset(&body_offsets[0], row)
        body_bytes = _offset(&body_offsets[0], row + 1) - body_at
        if text_bytes > TEXT_BYTES_MAX or body_bytes > 0x7FFFFFFF - ITEM_HEAD_BYTES - 2 - text_bytes:
            raise ValueError("a row is too long for its length fields")
        put32(at, <uint32_t>(ITEM_HEAD_BYTES + body_bytes + 2 + text_bytes))
        memset(at + 4, 0, 12)
        put32(at + 16, <uint32_t>body_bytes)
        at += ITEM_HEAD_BYTES
        if body_bytes:
            memcpy(at, body + body_at, body_bytes)
        at += body_bytes
        at[0] = <uint8_t>(text_bytes >> 8)
        at[1] = <uint8_t>text_bytes
        if text_bytes:
            memcpy(at + 2, text + text_at, text_bytes)
        at += 2 + text_bytes
    return encoded


# ── Ids of rows: BLAKE2b (RFC 7693) with a digest of 12 bytes ───────────────────────────────────────────────────────

cdef uint64_t[8] _START
_START[:] = [
    0x6A09E667F3BCC908, 0xBB67AE8584CAA73B, 0x3C6EF372FE94F82B, 0xA54FF53A5F1D36F1,
    0x510E527FADE682D1, 0x9B05688C2B3E6C1F, 0x1F83D9ABFB41BD6B, 0x5BE0CD19137E2179,
]
cdef uint8_t[10][16] _ORDER
_ORDER[0][:] = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15]
_ORDER[1][:] = [14, 10, 4, 8, 9, 15, 13, 6, 1, 12, 0, 2, 11, 7, 5, 3]
_ORDER[2][:] = [11, 8, 12, 0, 5, 2, 15, 13, 10, 14, 3, 6, 7, 1, 9, 4]
_ORDER[3][:] = [7, 9, 3, 1, 13, 12, 11, 14, 2, 6, 5, 10, 4, 0, 15, 8]
_ORDER[4][:] = [9, 0, 5, 7, 2, 4, 10, 15, 14, 1, 11, 12, 6, 8, 3, 13]
_ORDER[5][:] = [2, 12, 6, 10, 0, 11, 8, 3, 4, 13, 7, 5, 15, 14, 1, 9]
_ORDER[6][:] = [12, 5, 1, 15, 14, 13, 4, 10, 0, 7, 6, 3, 9, 2, 8, 11]
_ORDER[7][:] = [13, 11, 7, 14, 12, 1, 3, 9, 5, 0, 15, 4, 8, 6, 2, 10]
_ORDER[8][:] = [6, 15, 14, 9, 11, 3, 0, 8, 12, 2, 13, 7, 1, 4, 10, 5]
_ORDER[9][:] = [10, 2, 8, 4, 7, 6, 1, 5, 15, 11, 9, 14, 3, 12, 13, 0]


cdef inline uint64_t _turned(uint64_t value, int by) noexcept nogil:
    return (value >> by) | (value << (64 - by))


cdef inline void _mix(uint64_t *v, int a, int b, int c, int d, uint64_t x, uint64_t y) noexcept nogil:
    v[a] = v[a] + v[b] + x
    v[d] = _turned(v[d] ^ v[a], 32)
    v[c] = v[c] + v[d]
    v[b] = _turned(v[b] ^ v[c], 24)
    v[a] = v[a] + v[b] + y
    v[d] = _turned(v[d] ^ v[a], 16)
    v[c] = v[c] + v[d]
    v[b] = _turned(v[b] ^ v[c], 63)


cdef void _compress(uint64_t *state, const uint8_t *block, uint64_t done, bint is_last) noexcept nogil:
    cdef uint64_t[16] v
    cdef uint64_t[16] m
    cdef const uint8_t *s
    cdef int number
    for number in range(16):
        m[number] = little64(block + 8 * number)
    for number in range(8):
        v[number] = state[number]
        v[number + 8] = _START[number]
    v[12] ^= done
    if is_last:
        v[14] = ~v[14]
    for number in range(12):
        s = _ORDER[number % 10]
        _mix(v, 0, 4, 8, 12, m[s[0]], m[s[1]])
        _mix(v, 1, 5, 9, 13, m[s[2]], m[s[3]])
        _mix(v, 2, 6, 10, 14, m[s[4]], m[s[5]])
        _mix(v, 3, 7, 11, 15, m[s[6]], m[s[7]])
        _mix(v, 0, 5, 10, 15, m[s[8]], m[s[9]])
        _mix(v, 1, 6, 11, 12, m[s[10]], m[s[11]])
        _mix(v, 2, 7, 8, 13, m[s[12]], m[s[13]])
        _mix(v, 3, 4, 9, 14, m[s[14]], m[s[15]])
    for number in range(8):
        state[number] ^= v[number] ^ v[number + 8]


def row_ids(bytes stem, *, int64_t first, int64_t count):
    cdef const char *hexadecimal = b"0123456789ABCDEF"
    cdef Py_ssize_t whole = len(stem) // BLOCK_BYTES * BLOCK_BYTES, left = len(stem) - whole, at, used
    cdef const uint8_t *text = <const uint8_t *>PyBytes_AS_STRING(stem)
    cdef uint64_t[8] begun
    cdef uint64_t[8] state
    cdef uint8_t[2 * BLOCK_BYTES] tail
    cdef uint8_t[20] digits
    cdef int number, digit_count
    cdef uint8_t octet
    cdef int64_t row
    cdef bytes ids
    cdef uint8_t *into
    if first < 0 or not 0 <= count <= 0x7FFFFFFF // ID_DIGITS or first > 0x7FFFFFFFFFFFFFFF - count:
        raise ValueError("there are no such rows")
    for number in range(8):
        begun[number] = _START[number]
    begun[0] ^= 0x01010000 ^ HASH_BYTES
    # A block is finished when more follows it, and at least one digit does.
    for at in range(0, whole, BLOCK_BYTES):
        _compress(begun, text + at, at + BLOCK_BYTES, False)
    ids = PyBytes_FromStringAndSize(NULL, count * ID_DIGITS)
    into = <uint8_t *>PyBytes_AS_STRING(ids)
    with nogil:
        for row in range(first, first + count):
            digit_count = _digits64(row, digits)
            used = left + digit_count
            memset(tail, 0, sizeof(tail))
            memcpy(tail, text + whole, left)
            memcpy(&tail[left], &digits[20 - digit_count], digit_count)
            memcpy(state, begun, sizeof(begun))
            if used > BLOCK_BYTES:
                _compress(state, tail, whole + BLOCK_BYTES, False)
                _compress(state, &tail[BLOCK_BYTES], whole + used, True)
            else:
                _compress(state, tail, whole + used, True)
            memset(into, 48, ID_DIGITS)
            for number in range(HASH_BYTES):
                octet = <uint8_t>(state[number // 8] >> (8 * (number % 8)))
                at = 2 * number if number < 10 else 2 * number + 8
                into[at] = hexadecimal[octet >> 4]
                into[at + 1] = hexadecimal[octet & 15]
            into += ID_DIGITS
    return ids


cdef int _digits64(int64_t value, uint8_t *digits) noexcept nogil:
    """Write a number of at most 20 digits from the end of `digits` on; returns how many there are."""
    cdef int count = 0
    while True:
        count += 1
        digits[20 - count] = <uint8_t>(48 + value % 10)
        value //= 10
        if value == 0:
            return count


# ── Replies ─────────────────────────────────────────────────────────────────────────────────────────────────────────

cdef struct Text:
    const uint8_t *at
    Py_ssize_t size


cdef struct Replied:
    int64_t code
    int64_t flag
    int64_t opaque
    int64_t version
    int64_t queue_id
    int64_t queue_offset
    Text offset_id
    Text transaction_id
    Text region
    Text traced
    Text language
    Text encoding
    bint has_fields
    bint has_remark


cdef inline const uint8_t *_text(const uint8_t *at, const uint8_t *end, Text *found) noexcept nogil:
    """Read a string of plain ASCII; returns the position behind it, or NULL."""
    if at >= end or at[0] != 34:
        return NULL
    at += 1
    found.at = at
    while at < end and 32 <= at[0] < 128 and at[0] != 34 and at[0] != 92:
        at += 1
    if at >= end or at[0] != 34:
        return NULL
    found.size = at - found.at
    return at + 1


cdef inline const uint8_t *_number(const uint8_t *at, const uint8_t *end, int digits_max, int64_t *found) noexcept nogil:
    """Read a number without sign and leading zeros; returns the position behind it, or NULL."""
    cdef const uint8_t *start = at
    cdef int64_t value = 0
    while at < end and 48 <= at[0] <= 57:
        if at - start == digits_max:
            return NULL
        value = value * 10 + (at[0] - 48)
        at += 1
    if at == start or (start[0] == 48 and at - start > 1):
        return NULL
    found[0] = value
    return at


cdef inline bint _is(Text *text, const char *name, Py_ssize_t size) noexcept nogil:
    return text.size == size and memcmp(text.at, name, size) == 0


cdef bint _count(Text *text, int64_t *found) noexcept nogil:
    return found[0] < 0 and _number(text.at, text.at + text.size, 18, found) == text.at + text.size


cdef const uint8_t *_fields(const uint8_t *at, const uint8_t *end, Replied *reply) noexcept nogil:
    """Read the fields of a reply; returns the position behind them, or NULL."""
    cdef Text name, value
    cdef Text *known
    if at >= end or at[0] != 123:
        return NULL
    while True:
        at = _text(at + 1, end, &name)
        if at == NULL or at >= end or at[0] != 58:
            return NULL
        at = _text(at + 1, end, &value)
        if at == NULL or at >= end:
            return NULL
        if _is(&name, b"queueId", 7):
            if not _count(&value, &reply.queue_id):
                return NULL
        elif _is(&name, b"queueOffset", 11):
            if not _count(&value, &reply.queue_offset):
                return NULL
        else:
            if _is(&name, b"msgId", 5):
                known = &reply.offset_id
            elif _is(&name, b"transactionId", 13):
                known = &reply.transaction_id
            elif _is(&name, b"MSG_REGION", 10):
                known = &reply.region
            elif _is(&name, b"TRACE_ON", 8):
                known = &reply.traced
            else:
                return NULL
            if known.at != NULL:
                return NULL
            known[0] = value
        if at[0] == 125:
            return at + 1
        if at[0] != 44:
            return NULL


cdef bint _header(const uint8_t *at, const uint8_t *end, Replied *reply) noexcept nogil:
    """Whether this is the header of a plain success, from its first byte to its last."""
    cdef Text name
    cdef Text *text
    cdef int64_t *number
    if at >= end or at[0] != 123:
        return False
    while True:
        at = _text(at + 1, end, &name)
        if at == NULL or at >= end or at[0] != 58:
            return False
        at += 1
        text = NULL
        number = NULL
        if _is(&name, b"code", 4):
            number = &reply.code
        elif _is(&name, b"flag", 4):
            number = &reply.flag
        elif _is(&name, b"opaque", 6):
            number = &reply.opaque
        elif _is(&name, b"version", 7):
            number = &reply.version
        elif _is(&name, b"language", 8):
            text = &reply.language
        elif _is(&name, b"serializeTypeCurrentRPC", 23):
            text = &reply.encoding
        elif _is(&name, b"extFields", 9):
            if reply.has_fields:
                return False
            reply.has_fields = True
            at = _fields(at, end, reply)
        elif _is(&name, b"remark", 6):
            if reply.has_remark or end - at < 4 or memcmp(at, b"null", 4) != 0:
                return False
            reply.has_remark = True
            at += 4
        else:
            return False
        if number != NULL:
            if number[0] >= 0:
                return False
            at = _number(at, end, 10, number)
        elif text != NULL:
            if text.at != NULL:
                return False
            at = _text(at, end, text)
        if at == NULL or at >= end:
            return False
        if at[0] == 125:
            break
        if at[0] != 44:
            return False
    if at + 1 != end or reply.code != 0 or reply.flag != 1 or not 0 <= reply.opaque <= 0x7FFFFFFF:
        return False
    return reply.queue_id >= 0 and reply.queue_offset >= 0 and reply.offset_id.at != NULL


def scan_send_replies(bytes buffer, Py_ssize_t start, *, Py_ssize_t frame_bytes_max):
    cdef const uint8_t *data = <const uint8_t *>PyBytes_AS_STRING(buffer)
    cdef Py_ssize_t total = PyBytes_GET_SIZE(buffer), size, end
    cdef Replied reply
    cdef Text last
    cdef list found = []
    region = None
    last.at = NULL
    last.size = 0
    if start < 0:
        raise ValueError("the scan begins before the buffer")
    while start <= total - 8:
        size = <int32_t>get32(data + start)
        if size < 4 or size > total - start - 4 or size + 4 > frame_bytes_max:
            break
        # The first byte of the second number is the kind of the header: 0 is JSON.
        if get32(data + start + 4) != size - 4:
            break
        end = start + 4 + size
        memset(&reply, 0, sizeof(reply))
        reply.code = reply.flag = reply.opaque = reply.version = reply.queue_id = reply.queue_offset = -1
        if not _header(data + start + 8, data + end, &reply):
            break
        if reply.region.at == NULL:
            region = None
        elif last.at == NULL or last.size != reply.region.size or memcmp(last.at, reply.region.at, last.size) != 0:
            region = reply.region.at[: reply.region.size].decode("ascii")
        last = reply.region
        transaction_id = None
        if reply.transaction_id.at != NULL:
            transaction_id = PyUnicode_DecodeASCII(
                <const char *>reply.transaction_id.at, reply.transaction_id.size, NULL
            )
        found.append(
            (
                reply.opaque,
                PyUnicode_DecodeASCII(<const char *>reply.offset_id.at, reply.offset_id.size, NULL),
                reply.queue_id,
                reply.queue_offset,
                transaction_id,
                region,
                not (reply.traced.at != NULL and _is(&reply.traced, b"false", 5)),
                end,
            )
        )
        start = end
    return start, found
