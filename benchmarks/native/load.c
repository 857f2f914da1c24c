#define _GNU_SOURCE
#include "load.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

#include "control.h"

#define SLOT_BITS 20
#define GENERATIONS 1000 /* OPAQUE_BASE + GENERATIONS * 2^SLOT_BITS stays below 2^31. */
#define RECEIVE_BYTES (256 * 1024)
#define EVENTS_MAX 256
#define BATCH_ITEM_HEAD 20
#define MESSAGE_PROPERTIES "UNIQ_KEY\x01" MARK_UNIQUE_KEY "\x02WAIT\x01true\x02"
#define KEY_IN_PROPERTIES (sizeof "UNIQ_KEY\x01" - 1)
#define SECOND_NS 1000000000ll

_Static_assert(SLOTS_MAX == 1 << SLOT_BITS, "every slot has a number of its own in an opaque");

/* One request that may be in flight. */
typedef struct {
    int64_t started_ns; /* or when it should have started, at a fixed rate */
    int64_t queue_offset;
    int32_t queue; /* counted over all topics */
    uint16_t generation;
    bool is_busy;
} Slot;

typedef struct {
    int socket;
    bool waits_for_room; /* the kernel took only a part */
    bool has_news;       /* requests were added since the last write */
    uint8_t *in;
    size_t in_size, in_limit;
    uint8_t *out;
    size_t out_start, out_end, out_limit;
    uint32_t *free_slots; /* only used at a fixed rate */
    uint32_t free_count;
} Connection;

typedef struct {
    const Options *options;
    Outcome *outcome;
    Connection *connections;
    Slot *slots;
    uint32_t slot_count;
    Template *templates; /* one per queue, topic by topic */
    int target_count;
    uint8_t *body;       /* the same for every request */
    size_t body_size;
    size_t item_size;    /* of one message in a batch */
    uint8_t unique_key[UNIQUE_KEY_DIGITS + 1];
    uint64_t serial;
    uint64_t born_at_ms;
    int epoll, timer;
    int64_t timer_ns; /* what the timer is set to; 0 once it has fired */
    int64_t start_ns, window_start_ns, window_end_ns;
    uint64_t due_count;  /* requests started so far at a fixed rate */
    uint32_t in_flight, free_total, next_connection;
    int next_queue; /* counted over all topics */
} Load;

static int64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * SECOND_NS + now.tv_nsec;
}

static uint64_t wall_clock_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

static void *reserve(size_t count, size_t size)
{
    void *memory = calloc(count, size);
    if (!memory)
        failure("no memory for %zu x %zu bytes: use fewer connections or requests in flight", count, size);
    return memory;
}

/* ---- preparing ---- */

static void prepare_body(Load *load)
{
    const Options *options = load->options;
    bool is_batch = options->batch > 1;
    size_t properties = sizeof MESSAGE_PROPERTIES - 1;
    load->item_size = is_batch ? BATCH_ITEM_HEAD + (size_t)options->body_bytes + 2 + properties : (size_t)options->body_bytes;
    load->body_size = load->item_size * (size_t)options->batch;
    load->body = reserve(1, load->body_size);
    uint32_t random = 1; /* A fixed seed: every run sends the same bytes. */
    for (int item = 0; item < options->batch; item++) {
        uint8_t *at = load->body + (size_t)item * load->item_size;
        if (is_batch) {
            write_u32(at, (uint32_t)load->item_size);
            write_u32(at + 16, (uint32_t)options->body_bytes);
            at += BATCH_ITEM_HEAD;
        }
        for (int i = 0; i < options->body_bytes; i++) {
            random = random * 1664525 + 1013904223;
            *at++ = (uint8_t)"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ-+"[random >> 26];
        }
        if (is_batch) {
            *at++ = (uint8_t)(properties >> 8);
            *at++ = (uint8_t)properties;
            memcpy(at, MESSAGE_PROPERTIES, properties);
        }
    }
}

static bool build_send(Load *load, Template *template, const char *topic, const char *queue)
{
    const Options *options = load->options;
    bool is_batch = options->batch > 1;
    const Field fields[] = {
        {"a", options->group}, {"b", topic}, {"c", "TBW102"}, {"d", "4"}, {"e", queue}, {"f", "0"},
        {"g", MARK_BORN_AT}, {"h", "0"}, {"i", MESSAGE_PROPERTIES}, {"j", "0"}, {"k", "false"},
        {"m", is_batch ? "true" : "false"}, {"n", options->broker_name},
    };
    return template_build(template, options->header, is_batch ? REQUEST_SEND_BATCH : REQUEST_SEND, fields,
                          sizeof fields / sizeof *fields, load->body_size);
}

static bool build_pull(const Options *options, Template *template, const char *queue)
{
    char messages[16], bytes[16];
    snprintf(messages, sizeof messages, "%d", options->max_messages);
    snprintf(bytes, sizeof bytes, "%d", (options->max_messages + 31) / 32 * 262144);
    const Field fields[] = {
        {"consumerGroup", options->group}, {"topic", options->topic}, {"queueId", queue},
        {"queueOffset", MARK_QUEUE_OFFSET}, {"maxMsgNums", messages}, {"sysFlag", "4"}, {"commitOffset", "0"},
        {"suspendTimeoutMillis", "15000"}, {"subscription", "*"}, {"subVersion", "0"}, {"expressionType", "TAG"},
        {"maxMsgBytes", bytes}, {"bname", options->broker_name},
    };
    return template_build(template, options->header, REQUEST_PULL, fields, sizeof fields / sizeof *fields, 0);
}

static void prepare_requests(Load *load)
{
    const Options *options = load->options;
    if (options->mode == MODE_SEND)
        prepare_body(load);
    load->target_count = options->topics * options->queues;
    load->templates = reserve((size_t)load->target_count, sizeof *load->templates);
    for (int target = 0; target < load->target_count; target++) {
        char queue[16], topic[TOPIC_NAME_BYTES];
        snprintf(queue, sizeof queue, "%d", target % options->queues);
        topic_name(options, target / options->queues, topic);
        Template *template = &load->templates[target];
        if (!(options->mode == MODE_SEND ? build_send(load, template, topic, queue) : build_pull(options, template, queue)))
            failure("a request does not fit %d bytes of header: shorten the names", HEADER_MAX);
    }
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    /* As the Java client does it: address, process, a number of this process; time and counter follow per message. */
    snprintf((char *)load->unique_key, sizeof load->unique_key, "7F000001%04X%08X%012X", (unsigned)getpid() & 0xFFFF,
             (unsigned)now.tv_nsec ^ (unsigned)now.tv_sec << 8, 0u);
}

static void prepare_connections(Load *load)
{
    const Options *options = load->options;
    /* The last topic and queue have the longest numbers, hence the longest request. */
    size_t frame_max = load->templates[load->target_count - 1].head_size + QUEUE_OFFSET_DIGITS_MAX + load->body_size;
    load->slot_count = (uint32_t)(options->connections * options->in_flight);
    if ((int64_t)frame_max * load->slot_count > BUFFERED_MAX)
        usage_error("%u requests of %zu bytes in flight do not fit 1 GiB: lower one of them", load->slot_count, frame_max);
    load->slots = reserve(load->slot_count, sizeof *load->slots);
    load->connections = reserve((size_t)options->connections, sizeof *load->connections);
    for (int i = 0; i < options->connections; i++) {
        Connection *connection = &load->connections[i];
        connection->socket = connect_to(options);
        fcntl(connection->socket, F_SETFL, O_NONBLOCK);
        connection->in_limit = RECEIVE_BYTES;
        connection->in = reserve(1, connection->in_limit);
        connection->out_limit = frame_max * (size_t)options->in_flight;
        connection->out = reserve(1, connection->out_limit);
        connection->free_slots = reserve((size_t)options->in_flight, sizeof *connection->free_slots);
        struct epoll_event event = {.events = EPOLLIN, .data.u32 = (uint32_t)i};
        if (epoll_ctl(load->epoll, EPOLL_CTL_ADD, connection->socket, &event) < 0)
            failure("epoll: %s", strerror(errno));
    }
}

/* ---- sending ---- */

/* Time in milliseconds and a counter, 48 bits: unique as long as a millisecond has fewer than 65,536 messages. */
static void next_unique_key(Load *load, uint8_t *key)
{
    write_unique_key_serial(load->unique_key, load->born_at_ms << 16 | (load->serial++ & 0xFFFF));
    if (key != load->unique_key)
        memcpy(key, load->unique_key, UNIQUE_KEY_DIGITS);
}

static uint8_t *room_for(Connection *connection, size_t size)
{
    if (connection->out_limit - connection->out_end < size) {
        memmove(connection->out, connection->out + connection->out_start, connection->out_end - connection->out_start);
        connection->out_end -= connection->out_start;
        connection->out_start = 0;
    }
    if (connection->out_limit - connection->out_end < size)
        failure("more bytes wait to be sent than requests in flight can have: a mistake in this program");
    return connection->out + connection->out_end;
}

static void issue(Load *load, uint32_t slot_number, int64_t started_ns)
{
    const Options *options = load->options;
    Slot *slot = &load->slots[slot_number];
    Connection *connection = &load->connections[slot_number / (uint32_t)options->in_flight];
    if (options->mode == MODE_SEND) {
        slot->queue = load->next_queue;
        load->next_queue = (load->next_queue + 1) % load->target_count;
        next_unique_key(load, load->unique_key);
    }
    slot->generation = (uint16_t)((slot->generation + 1) % GENERATIONS);
    slot->is_busy = true;
    slot->started_ns = started_ns;
    const Template *template = &load->templates[slot->queue];
    Filling filling = {.opaque = OPAQUE_BASE + (int32_t)((uint32_t)slot->generation << SLOT_BITS | slot_number),
                       .born_at_ms = load->born_at_ms,
                       .unique_key = load->unique_key,
                       .queue_offset = (uint64_t)slot->queue_offset};
    uint8_t *frame = room_for(connection, template->head_size + QUEUE_OFFSET_DIGITS_MAX + load->body_size);
    size_t head_size = template_fill(template, &filling, frame);
    uint8_t *body = frame + head_size;
    memcpy(body, load->body ? load->body : frame, load->body_size);
    if (options->batch > 1) {
        size_t key_at = BATCH_ITEM_HEAD + (size_t)options->body_bytes + 2 + KEY_IN_PROPERTIES;
        for (int item = 0; item < options->batch; item++)
            next_unique_key(load, body + (size_t)item * load->item_size + key_at);
    }
    connection->out_end += head_size + load->body_size;
    connection->has_news = true;
    load->in_flight++;
}

static void watch(Load *load, Connection *connection, bool for_room)
{
    if (connection->waits_for_room == for_room)
        return;
    connection->waits_for_room = for_room;
    struct epoll_event event = {.events = EPOLLIN | (for_room ? (uint32_t)EPOLLOUT : 0),
                                .data.u32 = (uint32_t)(connection - load->connections)};
    epoll_ctl(load->epoll, EPOLL_CTL_MOD, connection->socket, &event);
}

static void flush(Load *load, Connection *connection)
{
    connection->has_news = false;
    while (connection->out_start < connection->out_end) {
        ssize_t taken = send(connection->socket, connection->out + connection->out_start,
                             connection->out_end - connection->out_start, MSG_NOSIGNAL);
        if (taken < 0 && errno == EINTR)
            continue;
        if (taken < 0 && errno == EAGAIN)
            break;
        if (taken < 0)
            failure("%s closed a connection: %s", load->options->address_text, strerror(errno));
        connection->out_start += (size_t)taken;
    }
    if (connection->out_start == connection->out_end)
        connection->out_start = connection->out_end = 0;
    watch(load, connection, connection->out_end > 0);
}

/* At a fixed rate: starts what is due, in turn over the connections, as long as any has a free slot. What finds none
 * stays due, and its latency grows from the moment it was due: nothing is left out while the broker stalls. */
static void issue_due(Load *load, int64_t now)
{
    const Options *options = load->options;
    while (load->free_total > 0) {
        int64_t due_ns = load->start_ns + (int64_t)((double)load->due_count * 1e9 / options->rate);
        if (due_ns > now || due_ns >= load->window_end_ns)
            return;
        Connection *connection;
        do {
            connection = &load->connections[load->next_connection];
            load->next_connection = (load->next_connection + 1) % (uint32_t)options->connections;
        } while (connection->free_count == 0);
        load->due_count++;
        load->free_total--;
        issue(load, connection->free_slots[--connection->free_count], due_ns);
    }
}

/* ---- receiving ---- */

static void count_error(Outcome *outcome, const Reply *reply)
{
    if (!outcome->first_remark[0])
        memcpy(outcome->first_remark, reply->remark, sizeof outcome->first_remark);
    int i = 0;
    while (i < outcome->error_count && outcome->errors[i].code != reply->code)
        i++;
    if (i == ERROR_CODES_MAX)
        i--; /* More kinds than anybody reads: the last one collects the rest. */
    else if (i == outcome->error_count)
        outcome->errors[outcome->error_count++].code = reply->code;
    outcome->errors[i].count++;
}

static bool is_in_window(const Load *load, int64_t at_ns)
{
    return at_ns >= load->window_start_ns && at_ns < load->window_end_ns;
}

static void count_success(Load *load, const Slot *slot, uint64_t messages, int64_t now)
{
    Outcome *outcome = load->outcome;
    outcome->total_requests++;
    outcome->total_messages += messages;
    if (is_in_window(load, now)) {
        outcome->requests++;
        outcome->messages += messages;
    }
    /* At a fixed rate the sample belongs to when it was due, else slow answers at the end would be lost. */
    if (is_in_window(load, load->options->rate > 0 ? slot->started_ns : now))
        histogram_add(&outcome->latency, now - slot->started_ns);
}

/* The next queue for a slot that has read its own to the end; false when there is none left. */
static bool change_queue(Load *load, Slot *slot)
{
    const Options *options = load->options;
    slot->queue_offset = 0;
    if (!options->once) {
        slot->queue = (slot->queue + 1) % options->queues;
        return true;
    }
    slot->queue = load->next_queue++;
    return slot->queue < options->queues;
}

/* False when this slot has nothing more to do. */
static bool note_pull(Load *load, Slot *slot, const Reply *reply, const uint8_t *body, size_t body_size, int64_t now)
{
    Outcome *outcome = load->outcome;
    if (reply->code == REPLY_OK) {
        int64_t count = records_count(body, body_size, slot->queue, slot->queue_offset);
        if (count <= 0 || reply->next_begin_offset != slot->queue_offset + count) {
            outcome->malformed++;
            return change_queue(load, slot);
        }
        slot->queue_offset += count;
        count_success(load, slot, (uint64_t)count, now);
        return true;
    }
    if (reply->code == REPLY_PULL_NOT_FOUND) {
        outcome->empty_pulls++;
        return change_queue(load, slot);
    }
    if ((reply->code == REPLY_PULL_RETRY || reply->code == REPLY_PULL_MOVED) &&
        reply->next_begin_offset > slot->queue_offset) {
        slot->queue_offset = reply->next_begin_offset;
        return true;
    }
    count_error(outcome, reply);
    return change_queue(load, slot);
}

static void note_send(Load *load, const Slot *slot, const Reply *reply, int64_t now)
{
    uint64_t messages = (uint64_t)load->options->batch;
    if (reply->code == REPLY_OK) {
        count_success(load, slot, messages, now);
        return;
    }
    count_error(load->outcome, reply);
    if (reply->code >= REPLY_FLUSH_TIMEOUT && reply->code <= REPLY_SLAVE_TIMEOUT)
        load->outcome->stored_anyway += messages;
}

static void note_frame(Load *load, uint32_t connection_number, const uint8_t *frame, size_t size, int64_t now)
{
    const Options *options = load->options;
    Reply reply;
    const uint8_t *body;
    size_t body_size;
    if (!reply_parse(frame, size, &reply, &body, &body_size))
        failure("%s sent a header that cannot be read", options->address_text);
    if (!reply.is_reply)
        return; /* A broker may call its clients. */
    uint32_t number = (uint32_t)reply.opaque - OPAQUE_BASE;
    uint32_t slot_number = number & (SLOTS_MAX - 1);
    Slot *slot = &load->slots[slot_number < load->slot_count ? slot_number : 0];
    if (slot_number >= load->slot_count || slot_number / (uint32_t)options->in_flight != connection_number ||
        !slot->is_busy || slot->generation != number >> SLOT_BITS) {
        load->outcome->unmatched++;
        return;
    }
    slot->is_busy = false;
    load->in_flight--;
    bool goes_on = true;
    if (options->mode == MODE_PULL)
        goes_on = note_pull(load, slot, &reply, body, body_size, now);
    else
        note_send(load, slot, &reply, now);
    if (options->rate > 0) {
        Connection *connection = &load->connections[connection_number];
        connection->free_slots[connection->free_count++] = slot_number;
        load->free_total++;
    } else if (goes_on && now < load->window_end_ns) {
        issue(load, slot_number, now_ns());
    }
}

static void receive(Load *load, uint32_t connection_number)
{
    Connection *connection = &load->connections[connection_number];
    ssize_t got = recv(connection->socket, connection->in + connection->in_size,
                       connection->in_limit - connection->in_size, 0);
    if (got < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (got <= 0)
        failure("%s closed a connection: %s", load->options->address_text, got ? strerror(errno) : "end of stream");
    int64_t now = now_ns();
    connection->in_size += (size_t)got;
    size_t at = 0;
    while (connection->in_size - at >= FRAME_PREFIX) {
        size_t frame_size = 4 + (size_t)read_u32(connection->in + at);
        if (frame_size < FRAME_PREFIX || frame_size > FRAME_MAX)
            failure("%s sent a frame of %zu bytes", load->options->address_text, frame_size);
        if (frame_size > connection->in_limit) {
            connection->in = realloc(connection->in, frame_size);
            if (!connection->in)
                failure("no memory for a frame of %zu bytes", frame_size);
            connection->in_limit = frame_size;
        }
        if (connection->in_size - at < frame_size)
            break;
        note_frame(load, connection_number, connection->in + at, frame_size, now);
        at += frame_size;
    }
    memmove(connection->in, connection->in + at, connection->in_size - at);
    connection->in_size -= at;
}

/* ---- the run ---- */

static void start_slots(Load *load)
{
    const Options *options = load->options;
    for (uint32_t i = 0; i < load->slot_count; i++) {
        Connection *connection = &load->connections[i / (uint32_t)options->in_flight];
        Slot *slot = &load->slots[i];
        if (options->rate > 0) {
            connection->free_slots[connection->free_count++] = i;
            load->free_total++;
            continue;
        }
        if (options->mode == MODE_PULL) {
            if (options->once && load->next_queue >= options->queues)
                break;
            slot->queue = load->next_queue++ % options->queues;
        }
        issue(load, i, now_ns());
    }
}

/* When the loop must look at the clock again, whatever the sockets do. */
static void set_timer(Load *load, int64_t now)
{
    int64_t at_ns = load->window_end_ns;
    if (now >= load->window_end_ns)
        at_ns = load->window_end_ns + (int64_t)(load->options->drain_seconds * 1e9) + 1;
    else if (load->options->rate > 0 && load->free_total > 0)
        at_ns = load->start_ns + (int64_t)((double)load->due_count * 1e9 / load->options->rate);
    if (at_ns == load->timer_ns)
        return;
    load->timer_ns = at_ns;
    /* A time in the past fires at once, as it should. */
    struct itimerspec timer = {.it_value = {.tv_sec = at_ns / SECOND_NS, .tv_nsec = at_ns % SECOND_NS}};
    timerfd_settime(load->timer, TFD_TIMER_ABSTIME, &timer, NULL);
}

static bool is_over(const Load *load, int64_t now)
{
    if (now > load->window_end_ns + (int64_t)(load->options->drain_seconds * 1e9))
        return true;
    bool has_due = load->options->rate > 0 &&
                   load->start_ns + (int64_t)((double)load->due_count * 1e9 / load->options->rate) < load->window_end_ns;
    return load->in_flight == 0 && !has_due;
}

static void run(Load *load)
{
    const Options *options = load->options;
    struct epoll_event events[EVENTS_MAX];
    for (int64_t now = load->start_ns; !is_over(load, now); now = now_ns()) {
        load->born_at_ms = wall_clock_ms();
        if (options->rate > 0)
            issue_due(load, now);
        for (int i = 0; i < options->connections; i++)
            if (load->connections[i].has_news && !load->connections[i].waits_for_room)
                flush(load, &load->connections[i]);
        set_timer(load, now);
        int ready = epoll_wait(load->epoll, events, EVENTS_MAX, -1);
        for (int i = 0; i < ready; i++) {
            uint32_t number = events[i].data.u32;
            if (number == UINT32_MAX) {
                uint64_t ticks;
                if (read(load->timer, &ticks, sizeof ticks) > 0)
                    load->timer_ns = 0;
                continue;
            }
            Connection *connection = &load->connections[number];
            if (events[i].events & EPOLLOUT)
                flush(load, connection);
            if (events[i].events & (EPOLLIN | EPOLLHUP | EPOLLERR))
                receive(load, number);
            if (connection->has_news && !connection->waits_for_room)
                flush(load, connection);
        }
    }
}

/* What was due and has no answer counts with the time it has waited so far: a lower bound, better than silence. */
static void count_unanswered(Load *load)
{
    int64_t now = now_ns();
    double rate = load->options->rate;
    for (uint32_t i = 0; i < load->slot_count; i++) {
        if (!load->slots[i].is_busy || !is_in_window(load, load->slots[i].started_ns))
            continue;
        load->outcome->unanswered++;
        histogram_add(&load->outcome->latency, now - load->slots[i].started_ns);
    }
    for (; rate > 0; load->due_count++) {
        int64_t due_ns = load->start_ns + (int64_t)((double)load->due_count * 1e9 / rate);
        if (due_ns >= load->window_end_ns)
            break;
        if (due_ns < load->window_start_ns)
            continue;
        load->outcome->unanswered++;
        histogram_add(&load->outcome->latency, now - due_ns);
    }
}

void load_run(const Options *options, Outcome *outcome)
{
    Load load = {.options = options, .outcome = outcome};
    load.epoll = epoll_create1(EPOLL_CLOEXEC);
    load.timer = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
    struct epoll_event event = {.events = EPOLLIN, .data.u32 = UINT32_MAX};
    if (load.epoll < 0 || load.timer < 0 || epoll_ctl(load.epoll, EPOLL_CTL_ADD, load.timer, &event) < 0)
        failure("no epoll or timer: %s", strerror(errno));
    prepare_requests(&load);
    prepare_connections(&load);
    load.born_at_ms = wall_clock_ms();
    load.start_ns = now_ns();
    load.window_start_ns = load.start_ns + (options->once ? 0 : (int64_t)(options->warmup_seconds * 1e9));
    load.window_end_ns = load.window_start_ns + (int64_t)(options->seconds * 1e9);
    start_slots(&load);
    run(&load);
    int64_t end_ns = now_ns();
    outcome->seconds = (double)((end_ns < load.window_end_ns ? end_ns : load.window_end_ns) - load.window_start_ns) / 1e9;
    count_unanswered(&load);
    for (int i = 0; i < options->connections; i++) {
        close(load.connections[i].socket);
        free(load.connections[i].in);
        free(load.connections[i].out);
        free(load.connections[i].free_slots);
    }
    free(load.connections);
    free(load.slots);
    free(load.templates);
    free(load.body);
    close(load.timer);
    close(load.epoll);
}
