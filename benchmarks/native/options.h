/* The command line of the generator. */
#ifndef KAPPAMQ_OPTIONS_H
#define KAPPAMQ_OPTIONS_H

#include <netinet/in.h>
#include <stdbool.h>
#include <stdint.h>

#include "protocol.h"

#define CONNECTIONS_MAX 4096
#define IN_FLIGHT_MAX 65536
#define SLOTS_MAX (1 << 20)
#define QUEUES_MAX 1024
#define TARGETS_MAX 20000 /* queues over all topics */
#define TOPIC_NAME_BYTES 144
#define BODY_MAX (4 * 1024 * 1024)
#define BUFFERED_MAX (1024ll * 1024 * 1024) /* of requests not yet taken by the kernel, over all connections */
#define SECONDS_MAX 3600

typedef enum { MODE_SEND, MODE_PULL, MODE_ECHO } Mode;

typedef struct {
    Mode mode;
    HeaderType header;
    struct sockaddr_in address;
    const char *address_text;
    const char *topic;
    int topics;         /* send: so many topics in turn; see topic_name */
    const char *group;
    const char *broker_name;
    bool create;        /* create the topic first */
    bool once;          /* pull: stop at the end of each queue instead of starting over */
    int queues;
    int connections;
    int in_flight;      /* per connection */
    int body_bytes;
    int batch;
    int max_messages;   /* per pull */
    double rate;        /* requests per second over all connections; 0: as many as are answered */
    double warmup_seconds;
    double seconds;
    double drain_seconds;
} Options;

/* Ends the process with status 2 and a sentence on standard error when the options make no sense. */
Options options_parse(int argument_count, char **arguments);

/* The first topic has the name itself, each further one its number behind it. */
void topic_name(const Options *options, int topic, char name[TOPIC_NAME_BYTES]);

_Noreturn void usage_error(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Ends the process with status 1: the broker could not be reached, or went away. */
_Noreturn void failure(const char *format, ...) __attribute__((format(printf, 1, 2)));

#endif
