/* The heads of attention, their copies, softmax and gradients: for `attention.c` with vectors, `amx.c` with Intel AMX, and
 * `disentangled.c`.
 *
 * Query, key and value are packed: `x` is (batch * length, 3 * heads * width), without the bias. Each head's values are
 * copied to buffers of their own, whose length is padded with zeros.
 */
#ifndef ATTENTUNE_HEADS
#define ATTENTUNE_HEADS

#include "threads.h"
#include "vectors.h"

typedef struct {
    int64_t batch, length, heads, width; dropout_t dropout; float scaling;
    const uint16_t *x; const float *bias, *mask; int64_t mask_row, mask_query; const float *position_bias; int64_t position_step;
    const uint16_t *positions; /* of disentangled.c */
    uint16_t *out; float *log_sums; const uint16_t *d_out; uint16_t *d_x; float *parts, *position_parts;
    int failed; /* memory allocation failed */
} attention_t;

/* Process one thread's share of the heads with AMX. */
void attentune_amx_body(void *attention);
void attentune_amx_back_body(void *attention);

/* Whether AMX is available, enabled, and fits these sizes. */
int attentune_amx_fit(const attention_t *given);

#define R 8 /* queries in a block of the vector programs */

/* out (R, size) = left (R, width) x right (width, size); sizes are multiples of W. */
static inline void product(const float *left, int64_t left_step, const float *right, int64_t width, int64_t size, float *out) {
    for (int64_t j = 0; j < size; j += W) {
        vf total[R] = {};
        for (int64_t e = 0; e < width; e++) {
            vf other = load(right + e * size + j);
            for (int r = 0; r < R; r++) total[r] += left[r * left_step + e] * other;
        }
        for (int r = 0; r < R; r++) store(out + r * size + j, total[r]);
    }
}

/* out (count, size) += the transpose of left (R, left_step) x right (R, size). */
static inline void add_outer_products(const float *left, int64_t left_step, const float *right, int64_t count, int64_t size,
                                      float *out) {
    for (int64_t e = 0; e < size; e += W) {
        vf other[R];
        for (int r = 0; r < R; r++) other[r] = load(right + r * size + e);
        for (int64_t j = 0; j < count; j++) {
            vf total = load(out + j * size + e);
            for (int r = 0; r < R; r++) total += left[r * left_step + j] * other[r];
            store(out + j * size + e, total);
        }
    }
}

/* Copy one head to (length, width) float32 and add the bias unless it is NULL; width is a multiple of W. */
static inline void load_head(const uint16_t *from, int64_t step, const float *bias, int64_t length, int64_t width,
                             float *rows) {
    for (int64_t i = 0; i < length; i++)
        for (int64_t e = 0; e < width; e += W) {
            vf x = load_bf16(from + i * step + e);
            store(rows + i * width + e, bias ? x + load(bias + e) : x);
        }
}

#ifdef __AVX512F__
/* One step of a block transpose: each pair of rows, `step` apart, exchanges groups of `step` elements. */
static inline void swap_groups(vf *rows, int step) {
    vi places = {}, others = {};
    for (int k = 0; k < W; k++) { /* index below W: first row, else second row */
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

static inline void transpose_block(const float *from, int64_t from_step, float *to, int64_t to_step) {
    vf rows[W];
    for (int i = 0; i < W; i++) rows[i] = load(from + i * from_step);
    swap_groups(rows, 1);
    swap_groups(rows, 2);
    swap_groups(rows, 4);
    swap_groups(rows, 8);
    for (int i = 0; i < W; i++) store(to + i * to_step, rows[i]);
}
#else
static inline void transpose_block(const float *from, int64_t from_step, float *to, int64_t to_step) {
    for (int64_t i = 0; i < W; i++)
        for (int64_t e = 0; e < W; e++) to[e * to_step + i] = from[i * from_step + e];
}
#endif

/* Transpose (length, width) to (width, length); both are multiples of W. */
static inline void transpose(const float *from, int64_t length, int64_t width, float *to) {
    for (int64_t i = 0; i < length; i += W)
        for (int64_t e = 0; e < width; e += W) transpose_block(from + i * width + e, width, to + e * length + i, length);
}

/* Where a head's position bias has the first key for this query: a bias is a function of key position - query position. */
static inline int64_t position_offset(const attention_t *g, int64_t head, int64_t query) {
    return head % g->heads * g->position_step + g->length - 1 - query;
}

static inline int differs_by_query(const attention_t *g) { return g->position_bias || (g->mask && g->mask_query); }

/* Mask and position bias to add to one query's scores, padded to `size` with -infinity. `head` is the index over all heads. */
static inline const float *bias_row(const attention_t *g, int64_t head, int64_t query, int64_t size, float *line) {
    if (query > 0 && !differs_by_query(g)) return line; /* the same for all queries of a text */
    if (g->mask) memcpy(line, g->mask + head / g->heads * g->mask_row + query * g->mask_query, 4 * g->length);
    else memset(line, 0, 4 * g->length);
    if (g->position_bias) {
        const float *added = g->position_bias + position_offset(g, head, query);
        for (int64_t j = 0; j < g->length; j++) line[j] += added[j];
    }
    for (int64_t j = g->length; j < size; j++) line[j] = -INFINITY;
    return line;
}

/* Exponentials of one query's scaled and masked scores, after dropout but not yet normalised: in place, or as bf16 in
 * `as_bf16` unless it is NULL. Returns the factor that normalises the product with the values. `query` is the index over
 * all heads. */
static inline float softmax_row(const attention_t *g, int64_t query, float *scores, const float *bias, int64_t size,
                           uint16_t *as_bf16) {
    dropout_t dropout = g->dropout;
    float scaling = g->scaling;
    vf most = broadcast(-INFINITY), total = {};
    for (int64_t j = 0; j < size; j += W) {
        vf score = load(scores + j) * scaling + load(bias + j);
        most = maximum(score, most);
        store(scores + j, score);
    }
    float top = reduce_max(most);
    uint64_t drawn = row_key(dropout, query);
    for (int64_t j = 0; j < size; j += W) {
        vf used_part = exponential(load(scores + j) - top);
        total += used_part;
        if (dropout.threshold) used_part = (vf)((vi)used_part & keep_mask(dropout, drawn, j));
        if (as_bf16) store_bf16(as_bf16 + j, used_part);
        else store(scores + j, used_part);
    }
    float all_of = reduce_sum(total);
    if (g->log_sums) g->log_sums[query] = top + logf(all_of);
    return (dropout.threshold ? dropout.scale_kept : 1.0f) / all_of;
}

/* Write the context of `count` queries, from the i-th of a text on: each row times its factor, as bf16. */
static inline void store_context(const attention_t *g, int64_t row, int64_t i, int64_t count, int64_t first,
                                 const float *context,
                       const float *factors) {
    for (int64_t r = 0; r < count; r++) {
        uint16_t *out = g->out + ((row * g->length + i + r) * g->heads) * g->width + first;
        for (int64_t e = 0; e < g->width; e += W) store_bf16(out + e, load(context + r * g->width + e) * factors[r]);
    }
}

/* Backward pass, one vector of keys: the probabilities, the same after dropout, and their gradient after dropout. */
typedef struct { vf probability, used_part, d; } probability_t;

static inline probability_t probability_step(dropout_t dropout, uint64_t drawn, uint32_t column, vf score, float log_sum,
                                             vf d) {
    vf probability = exponential(score - log_sum);
    if (!dropout.threshold) return (probability_t){probability, probability, d};
    vi stays = keep_mask(dropout, drawn, column);
    return (probability_t){probability, (vf)((vi)(probability * dropout.scale_kept) & stays),
    (vf)((vi)(d * dropout.scale_kept) & stays)};
}

/* Write one head's gradient (length, width) as bf16 and add its sum over tokens to the gradient of the bias. */
static inline void store_gradient(const float *from, int64_t length, int64_t width, uint16_t *to, int64_t step, float *d_bias) {
    for (int64_t e = 0; e < width; e += W) {
        vf total = load(d_bias + e);
        for (int64_t i = 0; i < length; i++) {
            vf x = load(from + i * width + e);
            store_bf16(to + i * step + e, x);
            total += x;
        }
        store(d_bias + e, total);
    }
}

#endif
