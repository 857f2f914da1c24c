/*
 * RocketMQ's remoting frames, as far as a load generator needs them. No I/O here: bytes in, bytes out.
 *
 *   frame   i32 length of what follows | u8 header type (0 JSON, 1 binary) | u24 header length | header | body
 *   record  i32 size | i32 magic | i32 crc | i32 queue id | i32 flag | i64 queue offset | i64 log offset | ...
 *   batch   per item: i32 size | i32 0 | i32 0 | i32 flag | i32 body length | body | i16 length | properties
 *
 * Requests carry the fields, in the order, that the Java client 5.5.0 sends.
 */
#ifndef KAPPAMQ_PROTOCOL_H
#define KAPPAMQ_PROTOCOL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    REQUEST_PULL = 11,
    REQUEST_CREATE_TOPIC = 17,
    REQUEST_MAX_OFFSET = 30,
    REQUEST_SEND = 310,
    REQUEST_SEND_BATCH = 320,
};

enum {
    REPLY_OK = 0,
    REPLY_FLUSH_TIMEOUT = 10, /* 10, 11 and 12: stored, yet not as safely as asked. */
    REPLY_SLAVE_TIMEOUT = 12,
    REPLY_PULL_NOT_FOUND = 19,
    REPLY_PULL_RETRY = 20,
    REPLY_PULL_MOVED = 21,
};

#define FRAME_PREFIX 8
#define FRAME_MAX (16u * 1024 * 1024)
#define HEADER_MAX 4096
#define OPAQUE_BASE 1000000000 /* Ten digits always: a template's length never changes. */

typedef enum { HEADER_JSON, HEADER_BINARY } HeaderType;

/* A name and value of a request's header fields. */
typedef struct {
    const char *name;
    const char *value;
} Field;

/* Values, or parts of values, that each use of a request replaces by text of the same width. */
#define MARK_BORN_AT "%BORN_MILLIS%"
#define BORN_AT_DIGITS 13
#define MARK_UNIQUE_KEY "%UNIQUE_KEY:32_HEX_DIGITS_LONG_%"
#define UNIQUE_KEY_DIGITS 32
/* A whole value, replaced by text of any width. */
#define MARK_QUEUE_OFFSET "%QUEUE_OFFSET%"

/* One request, prepared once and completed for each use. A position of 0 means: this request has no such field. */
typedef struct {
    HeaderType header;
    uint8_t head[FRAME_PREFIX + HEADER_MAX];
    uint32_t head_size;
    uint32_t body_size;
    uint32_t opaque_at;
    uint32_t born_at;
    uint32_t key_at;
    uint32_t queue_offset_at;
} Template;

/* What one use of a template fills in. */
typedef struct {
    int32_t opaque;
    uint64_t born_at_ms;
    const uint8_t *unique_key; /* UNIQUE_KEY_DIGITS characters */
    uint64_t queue_offset;
} Filling;

/* False when the header does not fit HEADER_MAX. */
bool template_build(Template *template, HeaderType header, int code, const Field *fields, size_t field_count,
                    size_t body_size);

/* Writes prefix and header, not the body, and returns their size: at most head_size + QUEUE_OFFSET_DIGITS_MAX. */
size_t template_fill(const Template *template, const Filling *filling, uint8_t *out);
#define QUEUE_OFFSET_DIGITS_MAX 20

/* The last twelve digits of a unique key, from 48 bits. */
#define UNIQUE_KEY_SERIAL_DIGITS 12
void write_unique_key_serial(uint8_t *key, uint64_t serial);

typedef struct {
    bool is_reply;
    int32_t code;
    int32_t opaque;
    int64_t next_begin_offset; /* -1 when absent */
    int64_t offset;            /* -1 when absent */
    char remark[160];
} Reply;

/* `frame` holds one whole frame. False when the header cannot be read. */
bool reply_parse(const uint8_t *frame, size_t frame_size, Reply *reply, const uint8_t **body, size_t *body_size);

/* The number of records in a pull's body, or -1 when it is not a run of records of this queue that starts at
 * `queue_offset` and has no gap. */
int64_t records_count(const uint8_t *body, size_t size, int32_t queue_id, int64_t queue_offset);

uint32_t read_u32(const uint8_t *at);
void write_u32(uint8_t *at, uint32_t value);

#endif
