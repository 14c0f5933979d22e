/* The sum of squares over many tensors in float32 or bf16. */
#include "threads.h"
#include "vectors.h"

typedef struct {
    int64_t tables;
    const int64_t *counts;
    const int8_t *is_bf16; /* for each tensor */
    const void *const *table;
    double *parts;
} squares_t;

static inline float widened(uint16_t x) {
    uint32_t bits = (uint32_t)x << 16;
    float value;
    memcpy(&value, &bits, 4);
    return value;
}

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
            float rest = 0;
            if (g.is_bf16[k]) {
                const uint16_t *half = g.table[k];
                for (; at + W <= stop; at += W) some += load_bf16(half + at) * load_bf16(half + at);
                for (; at < stop; at++) rest += widened(half[at]) * widened(half[at]);
            } else {
                const float *wide = g.table[k];
                for (; at + W <= stop; at += W) some += load(wide + at) * load(wide + at);
                for (; at < stop; at++) rest += wide[at] * wide[at];
            }
            total += (double)reduce_sum(some) + rest;
        }
    }
    g.parts[8 * number] = total;
}

/* Write the sum to `out`. Returns 1 if memory is short. */
int attentune_squares(int64_t tables, int threads, const int64_t *counts, const int8_t *is_bf16, const void *const *table,
                      double *out) {
    double *parts = calloc(threads, 64); /* one cache line per thread */
    if (!parts) return 1;
    squares_t given = {tables, counts, is_bf16, table, parts};
    attentune_in_parallel(squares_body, &given, threads);
    *out = 0;
    for (int number = 0; number < threads; number++) *out += parts[8 * number];
    free(parts);
    return 0;
}
