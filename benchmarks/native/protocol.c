#define _GNU_SOURCE
#include "protocol.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>

#define CLIENT_VERSION 513 /* What the Java client 5.5.0 announces. */
#define MAGIC_V1 0xDAA320A7u
#define MAGIC_V2 0xDAA320ABu
#define RECORD_MIN 91
#define BINARY_HEAD 21

_Static_assert(sizeof MARK_BORN_AT - 1 == BORN_AT_DIGITS, "a mark is as wide as what replaces it");
_Static_assert(sizeof MARK_UNIQUE_KEY - 1 == UNIQUE_KEY_DIGITS, "a mark is as wide as what replaces it");

uint32_t read_u32(const uint8_t *at)
{
    return (uint32_t)at[0] << 24 | (uint32_t)at[1] << 16 | (uint32_t)at[2] << 8 | at[3];
}

static uint64_t read_u64(const uint8_t *at)
{
    return (uint64_t)read_u32(at) << 32 | read_u32(at + 4);
}

void write_u32(uint8_t *at, uint32_t value)
{
    at[0] = (uint8_t)(value >> 24);
    at[1] = (uint8_t)(value >> 16);
    at[2] = (uint8_t)(value >> 8);
    at[3] = (uint8_t)value;
}


static void write_digits(uint8_t *at, uint64_t value, int digits)
{
    for (int i = digits - 1; i >= 0; i--) {
        at[i] = (uint8_t)('0' + value % 10);
        value /= 10;
    }
}

void write_unique_key_serial(uint8_t *key, uint64_t serial)
{
    for (int i = UNIQUE_KEY_DIGITS - 1; i >= UNIQUE_KEY_DIGITS - UNIQUE_KEY_SERIAL_DIGITS; i--) {
        key[i] = (uint8_t)"0123456789ABCDEF"[serial & 15];
        serial >>= 4;
    }
}

/* ---- writing requests ---- */

typedef struct {
    uint8_t *bytes;
    size_t size;
    size_t limit;
    bool overflowed;
} Writer;

static void put(Writer *writer, const void *bytes, size_t size)
{
    if (size > writer->limit - writer->size) {
        writer->overflowed = true;
        return;
    }
    memcpy(writer->bytes + writer->size, bytes, size);
    writer->size += size;
}

static void put_text(Writer *writer, const char *text)
{
    put(writer, text, strlen(text));
}

static void put_number(Writer *writer, uint32_t value, int bytes)
{
    uint8_t raw[4];
    write_u32(raw, value);
    put(writer, raw + 4 - bytes, (size_t)bytes);
}

static void put_json_string(Writer *writer, const char *text)
{
    put(writer, "\"", 1);
    for (; *text; text++) {
        char escaped[8];
        uint8_t c = (uint8_t)*text;
        if (c < 0x20 || c == '"' || c == '\\') {
            int size = snprintf(escaped, sizeof escaped, "\\u%04x", c);
            put(writer, escaped, (size_t)size);
        } else {
            put(writer, text, 1);
        }
    }
    put(writer, "\"", 1);
}

/* Writes a value and notes where a replaceable queue offset is; its mark itself is left out. */
static const char *value_of(const Field *field, bool *is_queue_offset)
{
    *is_queue_offset = strcmp(field->value, MARK_QUEUE_OFFSET) == 0;
    return *is_queue_offset ? "" : field->value;
}

static void put_json_header(Writer *writer, Template *template, int code, const Field *fields, size_t field_count)
{
    char text[96];
    snprintf(text, sizeof text, "{\"code\":%d,\"extFields\":{", code);
    put_text(writer, text);
    for (size_t i = 0; i < field_count; i++) {
        bool is_queue_offset;
        const char *value = value_of(&fields[i], &is_queue_offset);
        put_text(writer, i ? "," : "");
        put_json_string(writer, fields[i].name);
        put(writer, ":", 1);
        if (is_queue_offset)
            template->queue_offset_at = (uint32_t)writer->size + 1;
        put_json_string(writer, value);
    }
    put_text(writer, "},\"flag\":0,\"language\":\"JAVA\",\"opaque\":");
    template->opaque_at = (uint32_t)writer->size;
    snprintf(text, sizeof text, "%d,\"serializeTypeCurrentRPC\":\"JSON\",\"version\":%d}", OPAQUE_BASE, CLIENT_VERSION);
    put_text(writer, text);
}

static void put_binary_header(Writer *writer, Template *template, int code, const Field *fields, size_t field_count)
{
    put_number(writer, (uint32_t)code, 2);
    put_number(writer, 0, 1); /* language: Java */
    put_number(writer, CLIENT_VERSION, 2);
    template->opaque_at = (uint32_t)writer->size;
    put_number(writer, OPAQUE_BASE, 4);
    put_number(writer, 0, 4); /* flag */
    put_number(writer, 0, 4); /* no remark */
    size_t map_size_at = writer->size;
    put_number(writer, 0, 4);
    for (size_t i = 0; i < field_count; i++) {
        bool is_queue_offset;
        const char *value = value_of(&fields[i], &is_queue_offset);
        put_number(writer, (uint32_t)strlen(fields[i].name), 2);
        put_text(writer, fields[i].name);
        put_number(writer, (uint32_t)strlen(value), 4);
        if (is_queue_offset)
            template->queue_offset_at = (uint32_t)writer->size;
        put_text(writer, value);
    }
    write_u32(writer->bytes + map_size_at, (uint32_t)(writer->size - map_size_at - 4));
}

static uint32_t position_of(const Template *template, const char *mark)
{
    const uint8_t *at = memmem(template->head, template->head_size, mark, strlen(mark));
    return at ? (uint32_t)(at - template->head) : 0;
}

static void write_prefix(uint8_t *frame, HeaderType header, size_t head_size, size_t body_size)
{
    write_u32(frame, (uint32_t)(head_size - 4 + body_size));
    write_u32(frame + 4, (uint32_t)(head_size - FRAME_PREFIX));
    frame[4] = header == HEADER_BINARY;
}

bool template_build(Template *template, HeaderType header, int code, const Field *fields, size_t field_count,
                    size_t body_size)
{
    *template = (Template){.header = header, .body_size = (uint32_t)body_size};
    Writer writer = {template->head, FRAME_PREFIX, sizeof template->head, false};
    if (header == HEADER_JSON)
        put_json_header(&writer, template, code, fields, field_count);
    else
        put_binary_header(&writer, template, code, fields, field_count);
    template->head_size = (uint32_t)writer.size;
    template->born_at = position_of(template, MARK_BORN_AT);
    template->key_at = position_of(template, MARK_UNIQUE_KEY);
    write_prefix(template->head, header, template->head_size, body_size);
    return !writer.overflowed;
}

/* Makes room for a queue offset in the copy `out` of the head, and corrects the lengths around it. */
static size_t insert_queue_offset(const Template *template, uint64_t queue_offset, uint8_t *out)
{
    char digits[QUEUE_OFFSET_DIGITS_MAX + 1];
    size_t width = (size_t)snprintf(digits, sizeof digits, "%llu", (unsigned long long)queue_offset);
    uint32_t at = template->queue_offset_at;
    memmove(out + at + width, out + at, template->head_size - at);
    memcpy(out + at, digits, width);
    size_t head_size = template->head_size + width;
    if (template->header == HEADER_BINARY) {
        write_u32(out + at - 4, (uint32_t)width);
        write_u32(out + FRAME_PREFIX + BINARY_HEAD - 4, (uint32_t)(head_size - FRAME_PREFIX - BINARY_HEAD));
    }
    write_prefix(out, template->header, head_size, template->body_size);
    return head_size;
}

size_t template_fill(const Template *template, const Filling *filling, uint8_t *out)
{
    memcpy(out, template->head, template->head_size);
    if (template->header == HEADER_JSON)
        write_digits(out + template->opaque_at, (uint64_t)filling->opaque, 10);
    else
        write_u32(out + template->opaque_at, (uint32_t)filling->opaque);
    if (template->born_at)
        write_digits(out + template->born_at, filling->born_at_ms, BORN_AT_DIGITS);
    if (template->key_at)
        memcpy(out + template->key_at, filling->unique_key, UNIQUE_KEY_DIGITS);
    /* Last, because it moves what follows it. */
    return template->queue_offset_at ? insert_queue_offset(template, filling->queue_offset, out) : template->head_size;
}

/* ---- reading replies ---- */

typedef struct {
    const char *at;
    const char *end;
} Cursor;

typedef struct {
    const char *start;
    size_t size;
} Text;

static void skip_blanks(Cursor *cursor)
{
    while (cursor->at < cursor->end && strchr(" \t\r\n", *cursor->at))
        cursor->at++;
}

static bool take(Cursor *cursor, char wanted)
{
    skip_blanks(cursor);
    if (cursor->at == cursor->end || *cursor->at != wanted)
        return false;
    cursor->at++;
    return true;
}

/* The raw text between the quotes; escapes stay as they are, for no field read here has any. */
static bool take_string(Cursor *cursor, Text *text)
{
    if (!take(cursor, '"'))
        return false;
    text->start = cursor->at;
    for (; cursor->at < cursor->end; cursor->at++) {
        if (*cursor->at == '\\') {
            cursor->at++;
        } else if (*cursor->at == '"') {
            text->size = (size_t)(cursor->at++ - text->start);
            return true;
        }
    }
    return false;
}

/* A string, or a number, true, false or null as its text. */
static bool take_scalar(Cursor *cursor, Text *text)
{
    skip_blanks(cursor);
    if (cursor->at < cursor->end && *cursor->at == '"')
        return take_string(cursor, text);
    text->start = cursor->at;
    while (cursor->at < cursor->end && !strchr(",}] \t\r\n", *cursor->at))
        cursor->at++;
    text->size = (size_t)(cursor->at - text->start);
    return text->size > 0 && !strchr("{[", *text->start);
}

static bool is_text(Text text, const char *wanted)
{
    return text.size == strlen(wanted) && memcmp(text.start, wanted, text.size) == 0;
}

static int64_t number_of(Text text)
{
    bool is_negative = text.size > 0 && *text.start == '-';
    int64_t value = 0;
    for (size_t i = is_negative; i < text.size; i++) {
        if (text.start[i] < '0' || text.start[i] > '9' || value > INT64_MAX / 10 - 9)
            return -1;
        value = value * 10 + (text.start[i] - '0');
    }
    return is_negative ? -value : value;
}

static void note_extension(Reply *reply, Text name, Text value)
{
    if (is_text(name, "nextBeginOffset"))
        reply->next_begin_offset = number_of(value);
    else if (is_text(name, "offset"))
        reply->offset = number_of(value);
}

static void note_remark(Reply *reply, Text remark)
{
    snprintf(reply->remark, sizeof reply->remark, "%.*s", (int)(remark.size < 512 ? remark.size : 512), remark.start);
}

static bool note_member(Cursor *cursor, Reply *reply, Text name);

/* Walks the members of one object; at the top level (`is_top`) they are the header's own fields. */
static bool take_object(Cursor *cursor, Reply *reply, bool is_top)
{
    if (!take(cursor, '{'))
        return false;
    if (take(cursor, '}'))
        return true;
    do {
        Text name, value;
        if (!take_string(cursor, &name) || !take(cursor, ':'))
            return false;
        if (is_top) {
            if (!note_member(cursor, reply, name))
                return false;
        } else {
            if (!take_scalar(cursor, &value))
                return false;
            note_extension(reply, name, value);
        }
    } while (take(cursor, ','));
    return take(cursor, '}');
}

static bool note_member(Cursor *cursor, Reply *reply, Text name)
{
    Text value;
    skip_blanks(cursor);
    if (is_text(name, "extFields") && cursor->at < cursor->end && *cursor->at == '{')
        return take_object(cursor, reply, false);
    if (!take_scalar(cursor, &value))
        return false;
    if (is_text(name, "code"))
        reply->code = (int32_t)number_of(value);
    else if (is_text(name, "opaque"))
        reply->opaque = (int32_t)number_of(value);
    else if (is_text(name, "flag"))
        reply->is_reply = number_of(value) & 1;
    else if (is_text(name, "remark") && !is_text(value, "null"))
        note_remark(reply, value);
    return true;
}

static bool parse_binary_header(const uint8_t *at, size_t size, Reply *reply)
{
    if (size < BINARY_HEAD)
        return false;
    const uint8_t *end = at + size;
    reply->code = (int16_t)(at[0] << 8 | at[1]);
    reply->opaque = (int32_t)read_u32(at + 5);
    reply->is_reply = read_u32(at + 9) & 1;
    uint32_t remark_size = read_u32(at + 13);
    if (remark_size > size - BINARY_HEAD)
        return false;
    if (remark_size)
        note_remark(reply, (Text){(const char *)at + 17, remark_size});
    at += 17 + remark_size;
    uint32_t map_size = read_u32(at);
    at += 4;
    if (map_size != (size_t)(end - at))
        return false;
    while (at < end) {
        if (end - at < 6)
            return false;
        Text name = {(const char *)at + 2, (size_t)(at[0] << 8 | at[1])};
        if (name.size + 6 > (size_t)(end - at))
            return false;
        at += 2 + name.size;
        Text value = {(const char *)at + 4, read_u32(at)};
        if (value.size > (size_t)(end - at - 4))
            return false;
        at += 4 + value.size;
        note_extension(reply, name, value);
    }
    return true;
}

bool reply_parse(const uint8_t *frame, size_t frame_size, Reply *reply, const uint8_t **body, size_t *body_size)
{
    reply->is_reply = false;
    reply->code = INT_MIN;
    reply->opaque = INT_MIN;
    reply->next_begin_offset = -1;
    reply->offset = -1;
    reply->remark[0] = 0;
    uint32_t header_size = read_u32(frame + 4) & 0xFFFFFF;
    if (frame_size < FRAME_PREFIX || header_size > frame_size - FRAME_PREFIX)
        return false;
    *body = frame + FRAME_PREFIX + header_size;
    *body_size = frame_size - FRAME_PREFIX - header_size;
    bool is_whole;
    if (frame[4] == 0) {
        Cursor cursor = {(const char *)frame + FRAME_PREFIX, (const char *)*body};
        is_whole = take_object(&cursor, reply, true);
    } else {
        is_whole = frame[4] == 1 && parse_binary_header(frame + FRAME_PREFIX, header_size, reply);
    }
    return is_whole && reply->code != INT_MIN && reply->opaque != INT_MIN;
}

int64_t records_count(const uint8_t *body, size_t size, int32_t queue_id, int64_t queue_offset)
{
    int64_t count = 0;
    while (size > 0) {
        if (size < RECORD_MIN)
            return -1;
        uint32_t record_size = read_u32(body);
        uint32_t magic = read_u32(body + 4);
        if (record_size < RECORD_MIN || record_size > size || (magic != MAGIC_V1 && magic != MAGIC_V2))
            return -1;
        if ((int32_t)read_u32(body + 12) != queue_id || (int64_t)read_u64(body + 20) != queue_offset + count)
            return -1;
        body += record_size;
        size -= record_size;
        count++;
    }
    return count;
}
