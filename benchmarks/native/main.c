/*
 * A load generator for RocketMQ's protocol: sends or pulls as fast as it is answered, or sends at a fixed rate, and
 * prints one JSON object. It checks every reply, and it counts what the broker has stored before and after.
 */
#define _GNU_SOURCE
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "control.h"
#include "echo.h"
#include "load.h"

#define SETTLE_NS 20000000l

static void print_text(const char *text)
{
    putchar('"');
    for (; *text; text++) {
        unsigned char c = (unsigned char)*text;
        if (c < 0x20 || c == '"' || c == '\\' || c > 0x7E)
            printf("\\u%04x", c);
        else
            putchar(c);
    }
    putchar('"');
}

static void print_settings(const Options *options)
{
    printf("{\"mode\":\"%s\",\"address\":\"%s\",\"topic\":\"%s\",\"topics\":%d,\"queues\":%d,\"connections\":%d,\"in_flight\":%d,",
           options->mode == MODE_SEND ? "send" : "pull", options->address_text, options->topic, options->topics, options->queues,
           options->connections, options->in_flight);
    printf("\"body_bytes\":%d,\"batch\":%d,\"max_messages\":%d,\"header\":\"%s\",\"offered_rate\":%.1f,",
           options->body_bytes, options->batch, options->max_messages,
           options->header == HEADER_JSON ? "json" : "binary", options->rate * options->batch);
    printf("\"warmup_seconds\":%.3f,", options->once ? 0.0 : options->warmup_seconds);
}

static void print_latency(const Histogram *latency)
{
    static const struct {
        const char *name;
        double share;
    } SHARES[] = {{"p50", 0.5}, {"p90", 0.9}, {"p99", 0.99}, {"p99_9", 0.999}};
    printf("\"latency_us\":{");
    for (size_t i = 0; i < sizeof SHARES / sizeof *SHARES; i++)
        printf("\"%s\":%.1f,", SHARES[i].name, (double)histogram_quantile(latency, SHARES[i].share) / 1e3);
    printf("\"max\":%.1f,\"mean\":%.1f},", (double)latency->max / 1e3, histogram_mean(latency) / 1e3);
}

static void print_outcome(const Outcome *outcome)
{
    printf("\"seconds\":%.6f,\"requests\":%lu,\"count\":%lu,\"rate\":%.1f,", outcome->seconds, outcome->requests,
           outcome->messages, outcome->seconds > 0 ? (double)outcome->messages / outcome->seconds : 0.0);
    printf("\"total_requests\":%lu,\"total_count\":%lu,\"stored_anyway\":%lu,\"empty_pulls\":%lu,",
           outcome->total_requests, outcome->total_messages, outcome->stored_anyway, outcome->empty_pulls);
    printf("\"unanswered\":%lu,\"unmatched\":%lu,\"malformed\":%lu,\"errors\":{", outcome->unanswered,
           outcome->unmatched, outcome->malformed);
    for (int i = 0; i < outcome->error_count; i++)
        printf("%s\"%d\":%lu", i ? "," : "", outcome->errors[i].code, outcome->errors[i].count);
    printf("},\"first_remark\":");
    print_text(outcome->first_remark);
    putchar(',');
    print_latency(&outcome->latency);
}

/* A broker may show its queues' new ends a little after it has answered: asks again for as long as a drain may take. */
static int64_t settled_messages(const Options *options, int connection, int64_t wanted)
{
    int64_t stored = stored_messages(options, connection);
    int rounds = (int)(options->drain_seconds * 1e9 / SETTLE_NS);
    for (int round = 0; stored < wanted && round < rounds; round++) {
        nanosleep(&(struct timespec){.tv_nsec = SETTLE_NS}, NULL);
        stored = stored_messages(options, connection);
    }
    return stored;
}

static int echo(const Options *options, Outcome *outcome)
{
    echo_run(options, outcome);
    printf("{\"mode\":\"echo\",\"connections\":%d,\"in_flight\":%d,\"body_bytes\":%d,", options->connections,
           options->in_flight, options->body_bytes);
    print_latency(&outcome->latency);
    printf("\"requests\":%lu,\"rate\":%.1f}\n", outcome->requests, (double)outcome->requests / outcome->seconds);
    return 0;
}

int main(int argument_count, char **arguments)
{
    static Outcome outcome;
    Options options = options_parse(argument_count, arguments);
    if (options.mode == MODE_ECHO)
        return echo(&options, &outcome);
    int control = connect_to(&options);
    if (options.create)
        create_topics(&options, control);
    int64_t before = stored_messages(&options, control);
    load_run(&options, &outcome);
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    close(control); /* It was silent for as long as the load ran: the broker may have closed it. */
    control = connect_to(&options);
    int64_t expected = before;
    if (options.mode == MODE_SEND)
        expected += (int64_t)(outcome.total_messages + outcome.stored_anyway);
    int64_t after = settled_messages(&options, control, expected);
    close(control);
    print_settings(&options);
    print_outcome(&outcome);
    printf("\"stored_before\":%ld,\"stored_after\":%ld,\"generator_cpu_seconds\":%.3f}\n", before, after,
           (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
               (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) / 1e6);
    return 0;
}
