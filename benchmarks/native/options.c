#define _GNU_SOURCE
#include "options.h"

#include <arpa/inet.h>
#include <getopt.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char HELP[] =
    "usage: generator send|pull --address 127.0.0.1:PORT --topic NAME [options]\n"
    "       generator echo [--connections N] [--in-flight N] [--body BYTES] [--warmup SECONDS] [--seconds SECONDS]\n"
    "  echo needs no broker: requests of --body bytes to a process that only answers, the floor under every broker\n"
    "  --create               create the topic with --queues queues first\n"
    "  --queues N             queues to use, from 0 on (8)\n"
    "  --topics N             send: to so many topics in turn, NAME, NAME-1, NAME-2 ... (1)\n"
    "  --connections N        connections (1)\n"
    "  --in-flight N          requests in flight per connection (1)\n"
    "  --body BYTES           size of each message body (128)\n"
    "  --batch N              messages per request (1)\n"
    "  --max-messages N       messages wanted per pull (32)\n"
    "  --once                 pull: stop at the end of each queue, count what was there\n"
    "  --rate N               send: requests per second; latency counts from the intended time (0: closed loop)\n"
    "  --header json|binary   header encoding (json)\n"
    "  --group NAME           producer or consumer group (benchmark)\n"
    "  --broker-name NAME     (broker-a)\n"
    "  --warmup SECONDS       not measured (1)\n"
    "  --seconds SECONDS      measured (5)\n"
    "  --drain SECONDS        wait for the last replies, then for the queues' ends, at most this long (5)\n";

static _Noreturn void leave(int status, const char *format, va_list values)
{
    fputs("generator: ", stderr);
    vfprintf(stderr, format, values);
    fputc('\n', stderr);
    exit(status);
}

void usage_error(const char *format, ...)
{
    va_list values;
    va_start(values, format);
    leave(2, format, values);
}

void failure(const char *format, ...)
{
    va_list values;
    va_start(values, format);
    leave(1, format, values);
}

static double number(const char *name, const char *text, double low, double high)
{
    char *end;
    double value = strtod(text, &end);
    if (end == text || *end || !(value >= low && value <= high))
        usage_error("--%s takes a number from %g to %g, not '%s'", name, low, high, text);
    return value;
}

static int whole(const char *name, const char *text, int low, int high)
{
    double value = number(name, text, low, high);
    if (value != (int)value)
        usage_error("--%s takes a whole number, not '%s'", name, text);
    return (int)value;
}

static struct sockaddr_in loopback_address(const char *text)
{
    char host[32];
    int port = 0;
    struct sockaddr_in address = {.sin_family = AF_INET};
    if (sscanf(text, "%31[0-9.]:%d", host, &port) != 2 || inet_pton(AF_INET, host, &address.sin_addr) != 1 || port < 1 ||
        port > 65535)
        usage_error("--address takes an IPv4 address and a port, such as 127.0.0.1:10911, not '%s'", text);
    /* Load belongs on the machine it is measured on: a mistyped address must not burden somebody else. */
    if (ntohl(address.sin_addr.s_addr) >> 24 != 127)
        usage_error("--address must be on loopback (127.0.0.0/8), not '%s'", text);
    address.sin_port = htons((uint16_t)port);
    return address;
}

static void check_name(const char *name, const char *text)
{
    if (*text == 0 || strlen(text) > 127)
        usage_error("--%s takes 1 to 127 characters", name);
    for (const char *c = text; *c; c++)
        if (!strchr("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-%|", *c))
            usage_error("--%s has the character '%c', which RocketMQ's names may not have", name, *c);
}

static void check_together(const Options *options)
{
    if ((long)options->connections * options->in_flight > SLOTS_MAX)
        usage_error("at most %d requests in flight over all connections", SLOTS_MAX);
    if (options->mode == MODE_ECHO)
        return;
    if (!options->address_text || !options->topic)
        usage_error("--address and --topic are needed\n%s", HELP);
    check_name("topic", options->topic);
    check_name("group", options->group);
    if ((long)options->body_bytes * options->batch > BODY_MAX)
        usage_error("a request carries at most %d bytes of bodies: lower --body or --batch", BODY_MAX);
    if (options->mode == MODE_PULL && (options->rate > 0 || options->batch > 1))
        usage_error("--rate and --batch are for send");
    if (options->mode == MODE_PULL && options->topics > 1)
        usage_error("--topics is for send");
    if ((long)options->topics * options->queues > TARGETS_MAX)
        usage_error("at most %d queues over all topics", TARGETS_MAX);
    if (options->mode == MODE_SEND && options->once)
        usage_error("--once is for pull");
}

void topic_name(const Options *options, int topic, char name[TOPIC_NAME_BYTES])
{
    snprintf(name, TOPIC_NAME_BYTES, topic ? "%s-%d" : "%s", options->topic, topic);
}

Options options_parse(int argument_count, char **arguments)
{
    static const struct option NAMES[] = {
        {"address", 1, 0, 'a'},     {"topic", 1, 0, 't'},   {"create", 0, 0, 'c'},       {"queues", 1, 0, 'q'},
        {"connections", 1, 0, 'n'}, {"in-flight", 1, 0, 'f'}, {"body", 1, 0, 'b'},       {"batch", 1, 0, 'k'},
        {"max-messages", 1, 0, 'm'}, {"once", 0, 0, 'o'},   {"rate", 1, 0, 'r'},         {"header", 1, 0, 'h'},
        {"group", 1, 0, 'g'},       {"broker-name", 1, 0, 'B'}, {"warmup", 1, 0, 'w'},   {"seconds", 1, 0, 's'},
        {"drain", 1, 0, 'd'},       {"topics", 1, 0, 'T'},  {0, 0, 0, 0},
    };
    Options options = {.group = "benchmark", .broker_name = "broker-a", .topics = 1, .queues = 8, .connections = 1, .in_flight = 1,
                       .body_bytes = 128, .batch = 1, .max_messages = 32, .warmup_seconds = 1, .seconds = 5,
                       .drain_seconds = 5};
    int index = 0;
    for (int option; (option = getopt_long(argument_count, arguments, "", NAMES, &index)) != -1;) {
        const char *name = option == '?' ? "" : NAMES[index].name;
        switch (option) {
        case 'a': options.address = loopback_address(options.address_text = optarg); break;
        case 't': options.topic = optarg; break;
        case 'c': options.create = true; break;
        case 'T': options.topics = whole(name, optarg, 1, TARGETS_MAX); break;
        case 'q': options.queues = whole(name, optarg, 1, QUEUES_MAX); break;
        case 'n': options.connections = whole(name, optarg, 1, CONNECTIONS_MAX); break;
        case 'f': options.in_flight = whole(name, optarg, 1, IN_FLIGHT_MAX); break;
        case 'b': options.body_bytes = whole(name, optarg, 1, BODY_MAX); break;
        case 'k': options.batch = whole(name, optarg, 1, 4096); break;
        case 'm': options.max_messages = whole(name, optarg, 1, 4096); break;
        case 'o': options.once = true; break;
        case 'r': options.rate = number(name, optarg, 0, 1e8); break;
        case 'g': options.group = optarg; break;
        case 'B': options.broker_name = optarg; break;
        case 'w': options.warmup_seconds = number(name, optarg, 0, SECONDS_MAX); break;
        case 's': options.seconds = number(name, optarg, 0.001, SECONDS_MAX); break;
        case 'd': options.drain_seconds = number(name, optarg, 0, 60); break;
        case 'h':
            if (strcmp(optarg, "json") && strcmp(optarg, "binary"))
                usage_error("--header is json or binary, not '%s'", optarg);
            options.header = strcmp(optarg, "json") ? HEADER_BINARY : HEADER_JSON;
            break;
        default: usage_error("unknown option\n%s", HELP);
        }
    }
    const char *mode = optind == argument_count - 1 ? arguments[optind] : "";
    static const char *const MODES[] = {[MODE_SEND] = "send", [MODE_PULL] = "pull", [MODE_ECHO] = "echo"};
    int chosen = 0;
    while (chosen <= MODE_ECHO && strcmp(mode, MODES[chosen]))
        chosen++;
    if (chosen > MODE_ECHO)
        usage_error("say send, pull or echo\n%s", HELP);
    options.mode = (Mode)chosen;
    check_together(&options);
    return options;
}
