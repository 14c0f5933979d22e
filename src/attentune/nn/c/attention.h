/* What both programs of attention share: `attention.c`'s by vectors, `tiles.c`'s by matrix tiles.
 *
 * Query, key and value of a token lie beside each other: `x` is (batch * length, 3 * heads * width), without its bias. A
 * head's own numbers are copied to tables of its own, whose length is padded with zeros.
 */
#ifndef ATTENTUNE_ATTENTION
#define ATTENTUNE_ATTENTION

#include "threads.h"
#include "vectors.h"

typedef struct {
    int64_t batch, length, heads, width; drop_t drop; float scaling;
    const uint16_t *x; const float *bias, *mask; int64_t mask_row, mask_query;
    uint16_t *out; float *log_sums; const uint16_t *d_out; uint16_t *d_x; float *parts;
    int failed; /* there was no memory */
} attention_t;

/* One thread's share of the heads, by matrix tiles. */
void attentune_tiles_body(void *attention);
void attentune_tiles_back_body(void *attention);

/* Whether matrix tiles can do it, and may. */
int attentune_tiles_fit(const attention_t *given);

/* A head's numbers as (length, width) with their bias, if there is one; width is whole vectors. */
static inline void gather(const uint16_t *from, int64_t step, const float *bias, int64_t length, int64_t width, float *rows) {
    for (int64_t i = 0; i < length; i++)
        for (int64_t e = 0; e < width; e += W) {
            vf x = wide(from + i * step + e);
            store(rows + i * width + e, bias ? x + load(bias + e) : x);
        }
}

#ifdef __AVX512F__
/* One step of turning a block: of each two rows, halves of their groups of `step` numbers change places. */
static inline void swap_groups(vf *rows, int step) {
    vi places = {}, others = {};
    for (int k = 0; k < W; k++) { /* below W: of the first row, else of the second */
        places[k] = k & step ? W + (k ^ step) : k;
        others[k] = k & step ? W + k : k ^ step;
    }
    for (int i = 0; i < W; i++) {
        if (i & step) continue;
        __m512 first = (__m512)rows[i], second = (__m512)rows[i | step];
        rows[i] = (vf)_mm512_permutex2var_ps(first, (__m512i)places, second);
        rows[i | step] = (vf)_mm512_permutex2var_ps(first, (__m512i)others, second);
    }
}

static inline void turn_block(const float *from, int64_t from_step, float *to, int64_t to_step) {
    vf rows[W];
    for (int i = 0; i < W; i++) rows[i] = load(from + i * from_step);
    swap_groups(rows, 1);
    swap_groups(rows, 2);
    swap_groups(rows, 4);
    swap_groups(rows, 8);
    for (int i = 0; i < W; i++) store(to + i * to_step, rows[i]);
}
#else
static inline void turn_block(const float *from, int64_t from_step, float *to, int64_t to_step) {
    for (int64_t i = 0; i < W; i++)
        for (int64_t e = 0; e < W; e++) to[e * to_step + i] = from[i * from_step + e];
}
#endif

/* (length, width) turned to (width, length); both whole vectors. */
static inline void turn(const float *from, int64_t length, int64_t width, float *to) {
    for (int64_t i = 0; i < length; i += W)
        for (int64_t e = 0; e < width; e += W) turn_block(from + i * width + e, width, to + e * length + i, length);
}

/* What is added to a query's scores, in whole vectors: what is beyond the length becomes -infinity. */
static inline const float *bias_row(const attention_t *g, int64_t row, int64_t query, int64_t size, float *line) {
    if (query > 0 && (!g->mask || g->mask_query == 0)) return line; /* as it was for the text's first query */
    if (g->mask) memcpy(line, g->mask + row * g->mask_row + query * g->mask_query, 4 * g->length);
    else memset(line, 0, 4 * g->length);
    for (int64_t j = g->length; j < size; j++) line[j] = -INFINITY;
    return line;
}

/* A head's gradient (length, width) to its place in bf16, and its sum to the bias's. */
static inline void scatter(const float *from, int64_t length, int64_t width, uint16_t *to, int64_t step, float *d_bias) {
    for (int64_t e = 0; e < width; e += W) {
        vf total = load(d_bias + e);
        for (int64_t i = 0; i < length; i++) {
            vf x = load(from + i * width + e);
            narrow(to + i * step + e, x);
            total += x;
        }
        store(d_bias + e, total);
    }
}

#endif
