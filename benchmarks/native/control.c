#define _GNU_SOURCE
#include "control.h"

#include <errno.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#define TOPICS_AT_ONCE 100

int connect_to(const Options *options)
{
    int connection = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (connection < 0)
        failure("no socket: %s", strerror(errno));
    struct timeval timeout = {.tv_sec = CONTROL_TIMEOUT_SECONDS};
    int on = 1;
    setsockopt(connection, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof timeout);
    setsockopt(connection, SOL_SOCKET, SO_SNDTIMEO, &timeout, sizeof timeout);
    setsockopt(connection, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    if (connect(connection, (const struct sockaddr *)&options->address, sizeof options->address) < 0)
        failure("cannot connect to %s: %s", options->address_text, strerror(errno));
    return connection;
}

static void receive_all(const Options *options, int connection, uint8_t *at, size_t size)
{
    while (size > 0) {
        ssize_t got = recv(connection, at, size, 0);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            failure("no answer from %s: %s", options->address_text, got ? strerror(errno) : "connection closed");
        at += got;
        size -= (size_t)got;
    }
}

static int32_t last_opaque = OPAQUE_BASE;

static void tell(const Options *options, int connection, int code, const Field *fields, size_t field_count)
{
    static Template template;
    static uint8_t frame[sizeof template.head];
    if (!template_build(&template, options->header, code, fields, field_count, 0))
        failure("request %d does not fit %d bytes of header: shorten the names", code, HEADER_MAX);
    size_t size = template_fill(&template, &(Filling){.opaque = ++last_opaque}, frame);
    if (send(connection, frame, size, MSG_NOSIGNAL) != (ssize_t)size)
        failure("cannot send to %s: %s", options->address_text, strerror(errno));
}

/* The next reply to one of the last `count` requests. */
static Reply hear(const Options *options, int connection, int count)
{
    for (;;) {
        Reply reply;
        const uint8_t *body;
        size_t body_size;
        uint8_t length[4];
        receive_all(options, connection, length, sizeof length);
        uint32_t rest = read_u32(length);
        if (rest < 4 || rest > FRAME_MAX - 4)
            failure("%s sent a frame of %u bytes", options->address_text, rest);
        uint8_t *answer = malloc(4 + rest);
        memcpy(answer, length, sizeof length);
        receive_all(options, connection, answer + 4, rest);
        bool is_readable = reply_parse(answer, 4 + rest, &reply, &body, &body_size);
        free(answer);
        if (!is_readable)
            failure("%s sent a reply that cannot be read", options->address_text);
        if (reply.is_reply && reply.opaque > last_opaque - count && reply.opaque <= last_opaque)
            return reply;
    }
}

static void ask_for_topic(const Options *options, int connection, const char *topic)
{
    char queues[16];
    snprintf(queues, sizeof queues, "%d", options->queues);
    const Field fields[] = {
        {"topic", topic}, {"defaultTopic", "TBW102"}, {"readQueueNums", queues},
        {"writeQueueNums", queues}, {"perm", "6"}, {"topicFilterType", "SINGLE_TAG"},
        {"topicSysFlag", "0"}, {"order", "false"},
    };
    tell(options, connection, REQUEST_CREATE_TOPIC, fields, sizeof fields / sizeof *fields);
}

void create_topics(const Options *options, int connection)
{
    char name[TOPIC_NAME_BYTES];
    for (int first = 0; first < options->topics; first += TOPICS_AT_ONCE) {
        int count = options->topics - first < TOPICS_AT_ONCE ? options->topics - first : TOPICS_AT_ONCE;
        for (int i = 0; i < count; i++) {
            topic_name(options, first + i, name);
            ask_for_topic(options, connection, name);
        }
        for (int i = 0; i < count; i++) {
            Reply reply = hear(options, connection, count);
            if (reply.code != REPLY_OK)
                failure("topic '%s' was not created: code %d, %s", options->topic, reply.code, reply.remark);
        }
    }
}

static int64_t stored_in(const Options *options, int connection, const char *topic)
{
    int64_t sum = 0;
    for (int queue = 0; queue < options->queues; queue++) {
        char queue_text[16];
        snprintf(queue_text, sizeof queue_text, "%d", queue);
        const Field fields[] = {{"topic", topic}, {"queueId", queue_text}};
        tell(options, connection, REQUEST_MAX_OFFSET, fields, sizeof fields / sizeof *fields);
        Reply reply = hear(options, connection, 1);
        if (reply.code != REPLY_OK || reply.offset < 0)
            failure("no maximum offset for queue %d of '%s': code %d, %s", queue, topic, reply.code, reply.remark);
        sum += reply.offset;
    }
    return sum;
}

int64_t stored_messages(const Options *options, int connection)
{
    char name[TOPIC_NAME_BYTES];
    int64_t sum = 0;
    for (int topic = 0; topic < options->topics; topic++) {
        topic_name(options, topic, name);
        sum += stored_in(options, connection, name);
    }
    return sum;
}
