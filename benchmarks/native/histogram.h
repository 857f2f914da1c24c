/* Latencies in nanoseconds, kept as counts in buckets that are at most 1/128 of their value wide. */
#ifndef KAPPAMQ_HISTOGRAM_H
#define KAPPAMQ_HISTOGRAM_H

#include <stdint.h>

#define HISTOGRAM_SUB_BITS 7
#define HISTOGRAM_SUB (1u << HISTOGRAM_SUB_BITS)
#define HISTOGRAM_MAX_BITS 44 /* 2^44 ns are almost five hours: no run lasts that long. */
#define HISTOGRAM_BUCKETS ((HISTOGRAM_MAX_BITS - HISTOGRAM_SUB_BITS + 1) * HISTOGRAM_SUB)

typedef struct {
    uint64_t counts[HISTOGRAM_BUCKETS];
    uint64_t total;
    double sum;
    int64_t max;
} Histogram;

void histogram_add(Histogram *histogram, int64_t nanoseconds);

/* The upper edge of the bucket that holds the given share (0 to 1) of all samples; 0 when there are none. */
int64_t histogram_quantile(const Histogram *histogram, double share);

double histogram_mean(const Histogram *histogram);

#endif
