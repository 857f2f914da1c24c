# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""The functions of `columns_reference.py`, compiled. That module says what they do; this one may only be faster.

All input may come from the network: every read is checked against the end of its buffer before it happens. Bytes that
are no record are given to the reference, which says what is wrong with them.
"""

cimport cython
from cpython.buffer cimport PyBuffer_FillInfo
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport INT64_MAX, INT64_MIN, int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memchr, memcmp, memcpy, memset

from kappamq.errors import CorruptRecord
from kappamq.kernel import columns_reference as reference

INTERFACE = 2

cdef enum:
    MAGIC_V1 = -626843481
    MAGIC_V2 = -626843477
    RECORD_BYTES_MIN = 91
    BORN_V6 = 0x10
    STORE_V6 = 0x20
    INNER_BATCH = 0xC0
    PIECES_MAX = 128
    COPY_SLACK = 48
    BLOCK_CLASSES = 48
    BLOCKS_KEPT_MAX = 16
    BLOCK_BITS_MIN = 12

cdef Py_ssize_t BYTES_KEPT_MAX = 64 * 1024 * 1024

cdef int64_t MS_MIN = -62_135_596_800_000
cdef int64_t MS_MAX = 253_402_300_799_999

cdef extern from "Python.h":
    const char *PyUnicode_AsUTF8AndSize(object text, Py_ssize_t *size) except NULL

cdef extern from *:
    """
    static inline unsigned int kappa_load32(const unsigned char *at) {
        return ((unsigned int)at[0] << 24) | ((unsigned int)at[1] << 16) | ((unsigned int)at[2] << 8) | at[3];
    }
    static inline unsigned long long kappa_load64(const unsigned char *at) {
        return ((unsigned long long)kappa_load32(at) << 32) | kappa_load32(at + 4);
    }
    /* Copy without a call where it is short. `room` bytes may be read at `from`, and COPY_SLACK behind `size` written. */
    static inline void kappa_copy(unsigned char *into, const unsigned char *from, Py_ssize_t size, Py_ssize_t room) {
        if (size <= 16 && room >= 16) {
            memcpy(into, from, 16);
        } else if (size <= 48 && room >= 48) {
            memcpy(into, from, 48);
        } else {
            memcpy(into, from, (size_t)size);
        }
    }
    """
    void copy_short "kappa_copy"(uint8_t *into, const uint8_t *source, Py_ssize_t size, Py_ssize_t room) noexcept nogil
    uint32_t get32 "kappa_load32"(const uint8_t *at) noexcept nogil
    uint64_t get64 "kappa_load64"(const uint8_t *at) noexcept nogil


# ── Where the parts of a record are ─────────────────────────────────────────────────────────────────────────────────

cdef struct Parts:
    const uint8_t *start
    const uint8_t *stored_at
    const uint8_t *store_host
    Py_ssize_t store_host_bytes
    const uint8_t *body
    Py_ssize_t body_bytes
    const uint8_t *topic
    Py_ssize_t topic_bytes
    const uint8_t *properties
    Py_ssize_t properties_bytes
    Py_ssize_t size
    int32_t flags


cdef bint _locate(const uint8_t *start, Py_ssize_t left, Parts *parts) noexcept nogil:
    """Find the parts of the record that begins at `start`, of which `left` bytes are there. False if it is none."""
    cdef const uint8_t *end
    cdef const uint8_t *at
    cdef int32_t magic, body_bytes
    if left < RECORD_BYTES_MIN:
        return False
    parts.start = start
    parts.size = <int32_t>get32(start)
    if parts.size < RECORD_BYTES_MIN or parts.size > left:
        return False
    magic = <int32_t>get32(start + 4)
    if magic != MAGIC_V1 and magic != MAGIC_V2:
        return False
    end = start + parts.size
    parts.flags = <int32_t>get32(start + 36)
    at = start + 48 + (20 if parts.flags & BORN_V6 else 8)
    parts.stored_at = at
    parts.store_host = at + 8
    parts.store_host_bytes = 20 if parts.flags & STORE_V6 else 8
    at = parts.store_host + parts.store_host_bytes
    if end - at < 16:
        return False
    body_bytes = <int32_t>get32(at + 12)
    at += 16
    if body_bytes < 0 or body_bytes > end - at:
        return False
    parts.body = at
    parts.body_bytes = body_bytes
    at += body_bytes
    if magic == MAGIC_V1:
        if end - at < 1:
            return False
        parts.topic_bytes = at[0]
        at += 1
    else:
        if end - at < 2 or at[0] & 0x80:
            return False
        parts.topic_bytes = (<Py_ssize_t>at[0] << 8) | at[1]
        at += 2
    if end - at < parts.topic_bytes + 2:
        return False
    parts.topic = at
    at += parts.topic_bytes
    if at[0] & 0x80:
        return False
    parts.properties_bytes = (<Py_ssize_t>at[0] << 8) | at[1]
    parts.properties = at + 2
    return parts.properties + parts.properties_bytes == end


cdef object _fault(object buffer, Py_ssize_t at):
    """Raise what the reference says of the record at `at`."""
    reference.decode_record(buffer, at, _nothing, "")
    raise CorruptRecord(f"record at byte {at} cannot be decoded: its parts do not fit it", log_offset=at)


def _nothing(*values):
    return None


# ── Objects ─────────────────────────────────────────────────────────────────────────────────────────────────────────

@cython.final
cdef class _Reader:
    """Makes objects of records. Values that are the same from record to record are made once."""

    cdef object make, broker
    cdef bytes topic_bytes, born_bytes, store_bytes
    cdef str topic

    def __cinit__(self, make, broker):
        self.make = make
        self.broker = broker
        self.topic_bytes = self.born_bytes = self.store_bytes = b""
        self.topic = ""

    cdef bytes _same(self, bytes known, const uint8_t *at, Py_ssize_t size):
        if PyBytes_GET_SIZE(known) == size and memcmp(PyBytes_AS_STRING(known), at, size) == 0:
            return known
        return PyBytes_FromStringAndSize(<const char *>at, size)

    cdef object read(self, const Parts *parts):
        cdef const uint8_t *start = parts.start
        cdef bytes topic = self._same(self.topic_bytes, parts.topic, parts.topic_bytes)
        if topic is not self.topic_bytes:
            self.topic = topic.decode()
            self.topic_bytes = topic
        self.born_bytes = self._same(self.born_bytes, start + 48, parts.stored_at - start - 48)
        self.store_bytes = self._same(self.store_bytes, parts.store_host, parts.store_host_bytes)
        return self.make(
            self.topic,
            PyBytes_FromStringAndSize(<const char *>parts.body, parts.body_bytes),
            <int32_t>get32(start + 12),
            <int64_t>get64(start + 20),
            <int64_t>get64(start + 28),
            <int32_t>get32(start + 16),
            parts.flags,
            <int64_t>get64(start + 40),
            self.born_bytes,
            <int64_t>get64(parts.stored_at),
            self.store_bytes,
            <int32_t>get32(parts.store_host + parts.store_host_bytes),
            <int64_t>get64(parts.store_host + parts.store_host_bytes + 4),
            PyUnicode_DecodeUTF8(<const char *>parts.properties, parts.properties_bytes, NULL),
            <int32_t>get32(start + 8),
            parts.size,
            self.broker,
        )


def decode_record(buffer, Py_ssize_t at, make, broker):
    cdef const uint8_t[::1] view = buffer
    cdef Parts parts
    if at < 0 or at >= view.shape[0] or not _locate(&view[0] + at, view.shape[0] - at, &parts):
        return _fault(buffer, at)
    try:
        return _Reader(make, broker).read(&parts)
    except UnicodeDecodeError:
        return _fault(buffer, at)


def decode_records(buffer, make, broker):
    cdef const uint8_t[::1] view = buffer
    cdef Py_ssize_t at = 0, size = view.shape[0]
    cdef int32_t joined = 0
    cdef Parts parts
    cdef _Reader reader = _Reader(make, broker)
    cdef list made = []
    while at < size:
        if not _locate(&view[0] + at, size - at, &parts):
            return _fault(buffer, at)
        try:
            made.append(reader.read(&parts))
        except UnicodeDecodeError:
            return _fault(buffer, at)
        joined |= parts.flags
        at += parts.size
    return made, joined


def decode_properties(str text not None):
    cdef Py_ssize_t size
    cdef const char *at
    cdef const char *end
    cdef const char *stop
    cdef const char *mark
    cdef dict properties = {}
    try:
        at = PyUnicode_AsUTF8AndSize(text, &size)
    except UnicodeEncodeError:
        # Half of a surrogate pair, which no record holds.
        return reference.decode_properties(text)
    end = at + size
    while at < end:
        stop = <const char *>memchr(at, 2, end - at)
        if stop == NULL:
            stop = end
        mark = <const char *>memchr(at, 1, stop - at)
        if mark != NULL and mark > at and mark + 1 < stop:
            properties[PyUnicode_DecodeUTF8(at, mark - at, NULL)] = PyUnicode_DecodeUTF8(mark + 1, stop - mark - 1, NULL)
        at = stop + 1
    return properties


# ── Columns ─────────────────────────────────────────────────────────────────────────────────────────────────────────

cdef struct Kept:
    int count
    void *blocks[BLOCKS_KEPT_MAX]


# Memory of columns that nobody holds any more, by the number of bits of its size. A reader makes batch after batch of
# the same sizes: to get fresh pages from the system for each took longer than to fill them.
cdef Kept _kept[BLOCK_CLASSES]
cdef Py_ssize_t _kept_bytes = 0
memset(_kept, 0, sizeof(_kept))


@cython.final
cdef class _Block:
    """Memory for one buffer of a column, read-only for those who get it. Kept for another one when they are done."""

    cdef void *memory
    cdef int bits
    cdef Py_ssize_t used

    def __cinit__(self, Py_ssize_t size):
        global _kept_bytes
        cdef Kept *kept
        self.bits = BLOCK_BITS_MIN
        while (<Py_ssize_t>1 << self.bits) < size:
            self.bits += 1
            if self.bits == BLOCK_CLASSES:
                raise MemoryError
        kept = &_kept[self.bits]
        if kept.count:
            kept.count -= 1
            self.memory = kept.blocks[kept.count]
            _kept_bytes -= <Py_ssize_t>1 << self.bits
            return
        self.memory = malloc(<size_t>1 << self.bits)
        if self.memory == NULL:
            raise MemoryError

    def __dealloc__(self):
        global _kept_bytes
        cdef Kept *kept = &_kept[self.bits]
        cdef Py_ssize_t size = <Py_ssize_t>1 << self.bits
        if self.memory == NULL:
            return
        if kept.count < BLOCKS_KEPT_MAX and _kept_bytes + size <= BYTES_KEPT_MAX:
            kept.blocks[kept.count] = self.memory
            kept.count += 1
            _kept_bytes += size
        else:
            free(self.memory)

    def __getbuffer__(self, Py_buffer *view, int flags):
        PyBuffer_FillInfo(view, self, self.memory, self.used, 1, flags)

    def __len__(self):
        return self.used

    cdef _Block filled(self, Py_ssize_t used):
        self.used = used
        return self


@cython.final
cdef class _Numbers:
    """An array of numbers that may have nulls."""

    cdef _Block values
    cdef bytes bits
    cdef uint8_t *into
    cdef uint8_t *valid
    cdef Py_ssize_t width, rows, nulls

    def __cinit__(self, Py_ssize_t rows_max, Py_ssize_t width):
        self.values = _Block(rows_max * width)
        self.bits = PyBytes_FromStringAndSize(NULL, (rows_max + 7) // 8)
        self.into = <uint8_t *>self.values.memory
        self.valid = <uint8_t *>PyBytes_AS_STRING(self.bits)
        memset(self.valid, 0xFF, (rows_max + 7) // 8)
        self.width = width

    cdef inline void add32(self, int32_t value) noexcept:
        memcpy(self.into + self.rows * 4, &value, 4)
        self.rows += 1

    cdef inline void add64(self, int64_t value) noexcept:
        memcpy(self.into + self.rows * 8, &value, 8)
        self.rows += 1

    cdef inline void add_time(self, int64_t value) noexcept:
        if value < MS_MIN or value > MS_MAX:
            self.valid[self.rows >> 3] &= ~(1 << (self.rows & 7))
            self.nulls += 1
            value = 0
        self.add64(value * 1000)

    cdef tuple done(self):
        return (self.bits if self.nulls else None), self.nulls, self.values.filled(self.rows * self.width)


@cython.final
cdef class _Texts:
    """An array of texts or bytes that may have nulls."""

    cdef _Block offsets, values
    cdef bytes bits
    cdef int32_t *ends
    cdef uint8_t *valid
    cdef uint8_t *into
    cdef Py_ssize_t rows, used, nulls

    def __cinit__(self, Py_ssize_t rows_max, Py_ssize_t bytes_max):
        self.offsets = _Block((rows_max + 1) * 4)
        self.values = _Block(bytes_max + COPY_SLACK)
        self.bits = PyBytes_FromStringAndSize(NULL, (rows_max + 7) // 8)
        self.ends = <int32_t *>self.offsets.memory
        self.valid = <uint8_t *>PyBytes_AS_STRING(self.bits)
        self.into = <uint8_t *>self.values.memory
        self.ends[0] = 0
        memset(self.valid, 0xFF, (rows_max + 7) // 8)

    cdef inline void add(self, const uint8_t *at, Py_ssize_t size, const uint8_t *limit) noexcept:
        """Add a value, of memory that may be read up to `limit`."""
        copy_short(self.into + self.used, at, size, limit - at)
        self.used += size
        self.rows += 1
        self.ends[self.rows] = <int32_t>self.used

    cdef inline void add_null(self) noexcept:
        self.valid[self.rows >> 3] &= ~(1 << (self.rows & 7))
        self.nulls += 1
        self.rows += 1
        self.ends[self.rows] = <int32_t>self.used

    cdef tuple done(self):
        return (
            self.bits if self.nulls else None,
            self.nulls,
            self.offsets.filled((self.rows + 1) * 4),
            self.values.filled(self.used),
        )


cdef struct Piece:
    const uint8_t *name
    Py_ssize_t name_bytes
    const uint8_t *value
    Py_ssize_t value_bytes
    uint64_t head


cdef inline uint64_t _head(const uint8_t *name, Py_ssize_t size) noexcept nogil:
    """Length and first bytes of a name: names whose heads differ differ, and most that differ do so here."""
    cdef uint64_t head = <uint64_t>size << 32
    if size >= 4:
        return head | get32(name)
    while size > 0:
        size -= 1
        head |= <uint64_t>name[size] << (8 * size)
    return head


cdef inline bint _is_named(const Piece *piece, const char *name, Py_ssize_t size) noexcept nogil:
    return piece.name_bytes == size and memcmp(piece.name, name, size) == 0


cdef inline uint64_t _zeros(uint64_t word) noexcept nogil:
    """The highest bit of each byte that is zero."""
    return ~(((word & 0x7F7F7F7F7F7F7F7FULL) + 0x7F7F7F7F7F7F7F7FULL) | word | 0x7F7F7F7F7F7F7F7FULL)


cdef inline const uint8_t *_separator(const uint8_t *at, const uint8_t *end) noexcept nogil:
    """The first byte 1 or 2, or `end`. Names and values are short: a call for each would take longer."""
    cdef uint64_t word
    while end - at >= 8:
        memcpy(&word, at, 8)
        if _zeros(word ^ 0x0101010101010101ULL) | _zeros(word ^ 0x0202020202020202ULL):
            break
        at += 8
    while at < end and at[0] != 1 and at[0] != 2:
        at += 1
    return at


cdef int _split(const Parts *parts, Piece *pieces) noexcept nogil:
    """Number of properties, filled into `pieces`; -1 when there are too many or one comes twice."""
    cdef const uint8_t *at = parts.properties
    cdef const uint8_t *end = at + parts.properties_bytes
    cdef const uint8_t *stop
    cdef const uint8_t *mark
    cdef int count = 0, other
    cdef Piece *piece
    while at < end:
        mark = stop = _separator(at, end)
        while stop < end and stop[0] == 1:
            stop = _separator(stop + 1, end)
        if mark < stop and mark > at and mark + 1 < stop:
            if count == PIECES_MAX:
                return -1
            piece = &pieces[count]
            piece.name, piece.name_bytes = at, mark - at
            piece.value, piece.value_bytes = mark + 1, stop - mark - 1
            piece.head = _head(at, mark - at)
            for other in range(count):
                if pieces[other].head == piece.head and _is_named(
                    &pieces[other], <const char *>piece.name, piece.name_bytes
                ):
                    return -1
            count += 1
        at = stop + 1
    return count


cdef bint _is_ascii(const uint8_t *at, Py_ssize_t size) noexcept nogil:
    cdef uint64_t word
    while size >= 8:
        memcpy(&word, at, 8)
        if word & 0x8080808080808080ULL:
            return False
        at += 8
        size -= 8
    while size > 0:
        if at[0] & 0x80:
            return False
        at += 1
        size -= 1
    return True


cdef bint _is_text(const uint8_t *at, Py_ssize_t size) except -1:
    if _is_ascii(at, size):
        return True
    try:
        PyUnicode_DecodeUTF8(<const char *>at, size, NULL)
    except UnicodeDecodeError:
        return False
    return True


@cython.final
cdef class _Table:
    """Columns under way; those that are not wanted are `None`."""

    cdef _Texts topic, keys, tags, message_id, names, values, body
    cdef _Numbers queue_id, queue_offset, stored_at, born_at, retry_count, flags, entries
    cdef bint splits
    cdef Py_ssize_t rows
    cdef const uint8_t *limit
    cdef uint64_t keys_head, tags_head, unique_id_head

    def __cinit__(self, columns, Py_ssize_t rows, Py_ssize_t bodies, Py_ssize_t topics, Py_ssize_t texts):
        # The shortest property takes 4 bytes, or 3 at the end of its record.
        cdef Py_ssize_t entries = texts // 4 + rows
        self.topic = _Texts(rows, topics) if "topic" in columns else None
        self.queue_id = _Numbers(rows, 4) if "queueId" in columns else None
        self.queue_offset = _Numbers(rows, 8) if "queueOffset" in columns else None
        self.stored_at = _Numbers(rows, 8) if "storeTimestamp" in columns else None
        self.born_at = _Numbers(rows, 8) if "bornTimestamp" in columns else None
        self.keys = _Texts(rows, texts) if "keys" in columns else None
        self.tags = _Texts(rows, texts) if "tags" in columns else None
        self.message_id = _Texts(rows, texts + rows * 56) if "messageId" in columns else None
        self.retry_count = _Numbers(rows, 4) if "reconsumeTimes" in columns else None
        self.flags = _Numbers(rows, 4) if "flags" in columns else None
        self.body = _Texts(rows, bodies) if "body" in columns else None
        if "properties" in columns:
            self.entries = _Numbers(rows + 1, 4)
            self.entries.add32(0)
            self.names = _Texts(entries, texts)
            self.values = _Texts(entries, texts)
        self.keys_head, self.tags_head = _head(b"KEYS", 4), _head(b"TAGS", 4)
        self.unique_id_head = _head(b"UNIQ_KEY", 8)
        self.splits = not {"keys", "tags", "messageId", "properties"}.isdisjoint(columns)

    cdef inline void add(self, const Parts *parts, const Piece *pieces, int count) noexcept:
        cdef const uint8_t *start = parts.start
        self.rows += 1
        if self.topic is not None:
            self.topic.add(parts.topic, parts.topic_bytes, self.limit)
        if self.queue_id is not None:
            self.queue_id.add32(<int32_t>get32(start + 12))
        if self.queue_offset is not None:
            self.queue_offset.add64(<int64_t>get64(start + 20))
        if self.stored_at is not None:
            self.stored_at.add_time(<int64_t>get64(parts.stored_at))
        if self.born_at is not None:
            self.born_at.add_time(<int64_t>get64(start + 40))
        if self.retry_count is not None:
            self.retry_count.add32(<int32_t>get32(parts.store_host + parts.store_host_bytes))
        if self.flags is not None:
            self.flags.add32(parts.flags)
        if self.body is not None:
            self.body.add(parts.body, parts.body_bytes, self.limit)
        if self.splits:
            self._add_properties(parts, pieces, count)

    cdef void _add_properties(self, const Parts *parts, const Piece *pieces, int count) noexcept:
        cdef const Piece *keys = NULL
        cdef const Piece *tags = NULL
        cdef const Piece *unique_id = NULL
        cdef const Piece *piece
        cdef int number
        for number in range(count):
            piece = &pieces[number]
            # Four letters are all in the head.
            if piece.head == self.keys_head:
                keys = piece
            elif piece.head == self.tags_head:
                tags = piece
            elif piece.head == self.unique_id_head and _is_named(piece, b"UNIQ_KEY", 8):
                unique_id = piece
            if self.names is not None:
                self.names.add(piece.name, piece.name_bytes, self.limit)
                self.values.add(piece.value, piece.value_bytes, self.limit)
        if self.entries is not None:
            self.entries.add32(<int32_t>self.names.rows)
        if self.keys is not None:
            _add_value(self.keys, keys, self.limit)
        if self.tags is not None:
            _add_value(self.tags, tags, self.limit)
        if self.message_id is not None:
            if unique_id != NULL:
                self.message_id.add(unique_id.value, unique_id.value_bytes, self.limit)
            else:
                self._add_offset_id(parts)

    cdef void _add_offset_id(self, const Parts *parts) noexcept:
        """Hexadecimal digits of the store host and the log offset."""
        cdef uint8_t digits[56]
        cdef Py_ssize_t number, size = parts.store_host_bytes + 8
        cdef uint8_t octet
        for number in range(size):
            if number < parts.store_host_bytes:
                octet = parts.store_host[number]
            else:
                octet = parts.start[28 + number - parts.store_host_bytes]
            digits[2 * number] = _digit(octet >> 4)
            digits[2 * number + 1] = _digit(octet & 15)
        self.message_id.add(digits, 2 * size, digits + 56)

    cdef dict done(self):
        cdef dict arrays = {}
        for name, column in (
            ("topic", self.topic),
            ("queueId", self.queue_id),
            ("queueOffset", self.queue_offset),
            ("storeTimestamp", self.stored_at),
            ("bornTimestamp", self.born_at),
            ("keys", self.keys),
            ("tags", self.tags),
            ("messageId", self.message_id),
            ("reconsumeTimes", self.retry_count),
            ("flags", self.flags),
            ("body", self.body),
        ):
            if isinstance(column, _Texts):
                arrays[name] = (<_Texts>column).done()
            elif column is not None:
                arrays[name] = (<_Numbers>column).done()
        if self.entries is not None:
            arrays["properties"] = self.entries.done()[2:] + self.names.done()[2:] + self.values.done()[2:]
        return arrays


cdef inline void _add_value(_Texts texts, const Piece *piece, const uint8_t *limit) noexcept:
    if piece == NULL:
        texts.add_null()
    else:
        texts.add(piece.value, piece.value_bytes, limit)


cdef uint8_t _digit(uint8_t value) noexcept nogil:
    return 48 + value if value < 10 else 55 + value


cdef bint _has_tag(const Piece *pieces, int count, list tags):
    cdef int number
    cdef bytes tag
    for number in range(count):
        if _is_named(&pieces[number], b"TAGS", 4):
            for tag in tags:
                if (
                    pieces[number].value_bytes == PyBytes_GET_SIZE(tag)
                    and memcmp(pieces[number].value, PyBytes_AS_STRING(tag), pieces[number].value_bytes) == 0
                ):
                    return True
            return False
    return False


def decode_columns(buffer, columns, *, bytes starts, first, end, tags):
    cdef const uint8_t[::1] view = buffer
    cdef Py_ssize_t size = view.shape[0]
    cdef const uint8_t *data = &view[0] if size else NULL
    cdef Py_ssize_t count, rows_max, places, at = 0, number = 0
    cdef Py_ssize_t bodies = 0, topics = 0, texts = 0
    cdef int64_t place
    cdef int64_t lowest = INT64_MIN if first is None else first
    cdef int64_t highest = INT64_MAX if end is None else end
    cdef int64_t queue_offset
    cdef list wanted_tags = None if tags is None else list(tags)
    cdef Parts *rows
    cdef Parts *row
    cdef _Block found, grown
    if starts is not None and len(starts) % 8:
        raise ValueError("the starts of the records are cut short")
    places = 0 if starts is None else len(starts) // 8
    # A guess where nobody says how many there are.
    rows_max = size // 256 + 64 if starts is None else places
    found = _Block(rows_max * sizeof(Parts))
    rows = <Parts *>found.memory
    count = 0
    while at < size if starts is None else number < places:
        if starts is not None:
            memcpy(&place, PyBytes_AS_STRING(starts) + number * 8, 8)
            number += 1
            at = place
        if count == rows_max:
            grown = _Block(2 * rows_max * sizeof(Parts))
            memcpy(grown.memory, rows, rows_max * sizeof(Parts))
            found, rows, rows_max = grown, <Parts *>grown.memory, 2 * rows_max
        row = &rows[count]
        if at < 0 or at >= size or not _locate(data + at, size - at, row):
            return _fault(buffer, at)
        if not _is_text(row.properties, row.properties_bytes) or not _is_same_or_text(row, rows, count):
            return _fault(buffer, at)
        at += row.size
        if (row.flags & INNER_BATCH) == INNER_BATCH:
            return None
        queue_offset = <int64_t>get64(row.start + 20)
        if queue_offset < lowest or (end is not None and queue_offset >= highest):
            continue
        bodies += row.body_bytes
        topics += row.topic_bytes
        texts += row.properties_bytes
        count += 1
    if max(bodies, topics, texts + 56 * count) > 0x7FFFFFFF:
        raise ValueError("the records are too large for one batch")
    return _fill(rows, count, _Table(columns, count, bodies, topics, texts), wanted_tags, data + size)


cdef bint _is_same_or_text(const Parts *row, const Parts *rows, Py_ssize_t count) except -1:
    """Whether the topic is text; the one of the record before it was."""
    if (
        count
        and rows[count - 1].topic_bytes == row.topic_bytes
        and memcmp(rows[count - 1].topic, row.topic, row.topic_bytes) == 0
    ):
        return True
    return _is_text(row.topic, row.topic_bytes)


cdef object _fill(const Parts *rows, Py_ssize_t count, _Table table, list tags, const uint8_t *limit):
    cdef Piece pieces[PIECES_MAX]
    cdef int found = 0
    cdef int32_t joined = 0
    cdef Py_ssize_t number
    table.limit = limit
    for number in range(count):
        if table.splits or tags is not None:
            found = _split(&rows[number], pieces)
            if found < 0:
                return None
            if tags is not None and not _has_tag(pieces, found, tags):
                continue
        joined |= rows[number].flags
        table.add(&rows[number], pieces, found)
    return table.rows, joined, table.done()
