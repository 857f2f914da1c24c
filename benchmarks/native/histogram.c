#include "histogram.h"

/* Values below 128 have a bucket each; above, each power of two is cut into 128 buckets of equal width. */
static uint32_t bucket_of(uint64_t value)
{
    if (value < HISTOGRAM_SUB)
        return (uint32_t)value;
    uint32_t shift = 63u - (uint32_t)__builtin_clzll(value) - HISTOGRAM_SUB_BITS;
    uint32_t bucket = ((shift + 1) << HISTOGRAM_SUB_BITS) + ((uint32_t)(value >> shift) - HISTOGRAM_SUB);
    return bucket < HISTOGRAM_BUCKETS ? bucket : HISTOGRAM_BUCKETS - 1;
}

static int64_t upper_edge(uint32_t bucket)
{
    if (bucket < HISTOGRAM_SUB)
        return bucket;
    uint32_t shift = (bucket >> HISTOGRAM_SUB_BITS) - 1;
    uint64_t head = (bucket & (HISTOGRAM_SUB - 1)) + HISTOGRAM_SUB;
    return (int64_t)(((head + 1) << shift) - 1);
}

void histogram_add(Histogram *histogram, int64_t nanoseconds)
{
    if (nanoseconds < 0)
        nanoseconds = 0;
    histogram->counts[bucket_of((uint64_t)nanoseconds)]++;
    histogram->total++;
    histogram->sum += (double)nanoseconds;
    if (nanoseconds > histogram->max)
        histogram->max = nanoseconds;
}

int64_t histogram_quantile(const Histogram *histogram, double share)
{
    if (histogram->total == 0)
        return 0;
    double wanted = share * (double)histogram->total;
    uint64_t seen = 0;
    for (uint32_t bucket = 0; bucket < HISTOGRAM_BUCKETS; bucket++) {
        seen += histogram->counts[bucket];
        if (seen > 0 && (double)seen >= wanted) {
            int64_t edge = upper_edge(bucket);
            return edge < histogram->max ? edge : histogram->max;
        }
    }
    return histogram->max;
}

double histogram_mean(const Histogram *histogram)
{
    return histogram->total == 0 ? 0.0 : histogram->sum / (double)histogram->total;
}
