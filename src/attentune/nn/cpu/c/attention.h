/* What both programs of attention share: `attention.c`'s by vectors, `amx.c`'s by matrix tiles.
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
void attentune_amx_body(void *attention);
void attentune_amx_back_body(void *attention);

/* Whether matrix tiles can do it, and may. */
int attentune_amx_fit(const attention_t *given);

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

/* The softmax of a query's products with the keys, dropped from, before it is divided by its sum: in place, or in bf16 to
 * `halved` if that is given. Returns what its product with the values is multiplied with. `query` counts all heads' queries. */
static inline float soften(const attention_t *g, int64_t query, float *scores, const float *bias, int64_t size,
                           uint16_t *halved) {
    drop_t drop = g->drop;
    float scaling = g->scaling;
    vf most = all(-INFINITY), total = {};
    for (int64_t j = 0; j < size; j += W) {
        vf score = load(scores + j) * scaling + load(bias + j);
        most = larger(score, most);
        store(scores + j, score);
    }
    float top = largest(most);
    uint64_t drawn = row_key(drop, query);
    for (int64_t j = 0; j < size; j += W) {
        vf taken = exponential(load(scores + j) - top);
        total += taken;
        if (drop.level) taken = (vf)((vi)taken & kept(drop, drawn, j));
        if (halved) narrow(halved + j, taken);
        else store(scores + j, taken);
    }
    float all_of = sum(total);
    if (g->log_sums) g->log_sums[query] = top + logf(all_of);
    return (drop.level ? drop.up : 1.0f) / all_of;
}

/* What a block of queries, from the i-th of a text on, finds: each row times its factor, to its place. */
static inline void put(const attention_t *g, int64_t row, int64_t i, int64_t count, int64_t first, const float *found,
                       const float *factors) {
    for (int64_t r = 0; r < count; r++) {
        uint16_t *out = g->out + ((row * g->length + i + r) * g->heads) * g->width + first;
        for (int64_t e = 0; e < g->width; e += W) narrow(out + e, load(found + r * g->width + e) * factors[r]);
    }
}

/* For the backward pass: some of a query's probabilities, what was taken of them, and the gradients of what was taken. */
typedef struct { vf probability, taken, d; } weighed_t;

static inline weighed_t weigh(drop_t drop, uint64_t drawn, uint32_t column, vf score, float log_sum, vf d) {
    vf probability = exponential(score - log_sum);
    if (!drop.level) return (weighed_t){probability, probability, d};
    vi stays = kept(drop, drawn, column);
    return (weighed_t){probability, (vf)((vi)(probability * drop.up) & stays), (vf)((vi)(d * drop.up) & stays)};
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
