/* The sum of squares over many float32 tensors. */
#include "threads.h"
#include "vectors.h"

typedef struct { int64_t tables; const float *const *table; const int64_t *counts; double *parts; } squares_t;

static void squares_body(void *pointer) {
    squares_t g = *(squares_t *)pointer;
    double total = 0;
    int number = attentune_share(0).number;
    for (int64_t k = 0; k < g.tables; k++) {
        share_t own = attentune_share(g.counts[k]);
        int64_t at = own.begin;
        while (at < own.end) { /* float32 sums over at most 4096 elements, float64 between them */
            int64_t stop = own.end - at < 4096 ? own.end : at + 4096;
            vf some = {};
            for (; at + W <= stop; at += W) some += load(g.table[k] + at) * load(g.table[k] + at);
            float rest = 0;
            for (; at < stop; at++) rest += g.table[k][at] * g.table[k][at];
            total += (double)reduce_sum(some) + rest;
        }
    }
    g.parts[8 * number] = total;
}

/* Write the sum to `out`. Returns 1 if memory is short. */
int attentune_squares(int64_t tables, int threads, const float *const *table, const int64_t *counts, double *out) {
    double *parts = calloc(threads, 64); /* one cache line per thread */
    if (!parts) return 1;
    squares_t given = {tables, table, counts, parts};
    attentune_in_parallel(squares_body, &given, threads);
    *out = 0;
    for (int number = 0; number < threads; number++) *out += parts[8 * number];
    free(parts);
    return 0;
}
