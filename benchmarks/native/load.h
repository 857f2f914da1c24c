/* The load itself: many connections, many requests in flight on each, one thread, one epoll. */
#ifndef KAPPAMQ_LOAD_H
#define KAPPAMQ_LOAD_H

#include "histogram.h"
#include "options.h"

#define ERROR_CODES_MAX 32

typedef struct {
    int32_t code;
    uint64_t count;
} ErrorCount;

typedef struct {
    double seconds;          /* length of the measured window */
    uint64_t requests;       /* answered well within the window */
    uint64_t messages;       /* in those requests */
    uint64_t total_requests; /* answered well, warm-up and drain included */
    uint64_t total_messages;
    uint64_t stored_anyway;  /* messages in replies 10 to 12: refused as a success, yet in the log */
    uint64_t empty_pulls;    /* replies that said: end of the queue */
    uint64_t unanswered;     /* due within the window, no reply when the run ended */
    uint64_t unmatched;      /* replies that answer no request */
    uint64_t malformed;      /* pull replies whose records do not add up */
    ErrorCount errors[ERROR_CODES_MAX]; /* of the whole run */
    int error_count;
    char first_remark[160];
    Histogram latency;
} Outcome;

/* Runs for warm-up, window and at most the drain time; `outcome` starts zeroed. */
void load_run(const Options *options, Outcome *outcome);

#endif
