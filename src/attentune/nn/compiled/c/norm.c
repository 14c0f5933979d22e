/* out = layer_norm(residual + dropout(x + bias)), forward and backward, in one pass over memory.
 *
 * For layers that normalise before attention and feed-forward network, `sum` is what is normalised, with a gradient of its
 * own, and x may be missing.
 */
#include "threads.h"
#include "vectors.h"

typedef struct {
    int64_t rows, columns; dropout_t dropout; float epsilon;
    const uint16_t *x; const float *bias, *residual, *scale, *shift;
    float *out; uint16_t *out_bf16; float *normed, *inverse, *sum;
} norm_t;

static void norm_body(void *pointer) {
    norm_t g = *(norm_t *)pointer;
    share_t own = attentune_share(g.rows);
    for (int64_t i = own.begin; i < own.end; i++) {
        int64_t at = i * g.columns;
        float *normed = g.normed ? g.normed + at : g.out + at;
        uint64_t key = row_key(g.dropout, i);
        vf total = {};
        for (int64_t j = 0; j < g.columns; j += W) {
            vf x = load(g.residual + at + j);
            if (g.x) x += apply_dropout(g.dropout, key, j, load_bf16(g.x + at + j) + load(g.bias + j));
            if (g.sum) store(g.sum + at + j, x);
            store(normed + j, x);
            total += x;
        }
        float mean = reduce_sum(total) / g.columns;
        vf squares = {};
        for (int64_t j = 0; j < g.columns; j += W) {
            vf x = load(normed + j) - mean;
            squares += x * x;
        }
        float inverse = 1.0f / sqrtf(reduce_sum(squares) / g.columns + g.epsilon);
        if (g.inverse) g.inverse[i] = inverse;
        for (int64_t j = 0; j < g.columns; j += W) {
            vf x = (load(normed + j) - mean) * inverse;
            vf y = x * load(g.scale + j) + load(g.shift + j);
            store(normed + j, x);
            if (g.out) store(g.out + at + j, y);
            store_bf16(g.out_bf16 + at + j, y);
        }
    }
}

/* `normed` (before scale and shift) and `inverse` (1 / standard deviation) are for the backward pass; both may be NULL. So may
 * be x with its bias, `out` if `normed` is not, and `sum`. */
void attentune_norm(int64_t rows, int64_t columns, int threads, uint64_t seed, uint32_t threshold, float scale_kept,
                    float epsilon,
                    const uint16_t *x, const float *bias, const float *residual, const float *scale, const float *shift,
                    float *out, uint16_t *out_bf16, float *normed, float *inverse, float *sum) {
    norm_t given = {rows, columns, {seed, threshold, scale_kept}, epsilon, x, bias, residual, scale, shift,
                    out, out_bf16, normed, inverse, sum};
    attentune_in_parallel(norm_body, &given, threads);
}

typedef struct {
    int64_t rows, columns, stride; float epsilon; const float *x; uint16_t *out;
} normalize_t;

static void normalize_body(void *pointer) {
    normalize_t g = *(normalize_t *)pointer;
    share_t own = attentune_share(g.rows);
    for (int64_t i = own.begin; i < own.end; i++) {
        const float *x = g.x + i * g.columns;
        uint16_t *out = g.out + i * g.stride;
        vf total = {}, squares = {};
        for (int64_t j = 0; j < g.columns; j += W) total += load(x + j);
        float mean = reduce_sum(total) / g.columns;
        for (int64_t j = 0; j < g.columns; j += W) {
            vf centred = load(x + j) - mean;
            squares += centred * centred;
        }
        float inverse = 1.0f / sqrtf(reduce_sum(squares) / g.columns + g.epsilon);
        for (int64_t j = 0; j < g.columns; j += W) store_bf16(out + j, (load(x + j) - mean) * inverse);
    }
}

/* Layer normalisation without scale and shift; `stride` is the distance of two rows of the result. */
void attentune_normalize(int64_t rows, int64_t columns, int64_t stride, int threads, float epsilon, const float *x,
                         uint16_t *out) {
    normalize_t given = {rows, columns, stride, epsilon, x, out};
    attentune_in_parallel(normalize_body, &given, threads);
}

typedef struct {
    int64_t rows, columns; dropout_t dropout;
    const float *d_out; const uint16_t *d_out_more; const float *d_sum, *normed, *inverse, *scale;
    float *d_residual; uint16_t *d_x; float *parts;
} norm_back_t;

static void norm_back_body(void *pointer) {
    norm_back_t g = *(norm_back_t *)pointer;
    share_t own = attentune_share(g.rows);
    float *d_scale = g.parts + own.number * 3 * g.columns, *d_shift = d_scale + g.columns, *d_bias = d_shift + g.columns;
    for (int64_t i = own.begin; i < own.end; i++) {
        int64_t at = i * g.columns;
        uint64_t key = row_key(g.dropout, i);
        vf plain = {}, weighted = {};
        for (int64_t j = 0; j < g.columns; j += W) {
            vf d = g.d_out ? load(g.d_out + at + j) : (vf){}, x = load(g.normed + at + j);
            if (g.d_out_more) d += load_bf16(g.d_out_more + at + j);
            store(d_scale + j, load(d_scale + j) + d * x);
            store(d_shift + j, load(d_shift + j) + d);
            d *= load(g.scale + j);
            store(g.d_residual + at + j, d);
            plain += d;
            weighted += d * x;
        }
        float mean = reduce_sum(plain) / g.columns, slope = reduce_sum(weighted) / g.columns, inverse = g.inverse[i];
        for (int64_t j = 0; j < g.columns; j += W) {
            vf d = (load(g.d_residual + at + j) - mean - load(g.normed + at + j) * slope) * inverse;
            if (g.d_sum) d += load(g.d_sum + at + j);
            vf d_x = apply_dropout(g.dropout, key, j, d);
            store(g.d_residual + at + j, d);
            store(d_bias + j, load(d_bias + j) + d_x);
            store_bf16(g.d_x + at + j, d_x);
        }
    }
}

/* `d_out_more` is added to `d_out`, either may be NULL; `d_sum` is the gradient of `sum` or NULL; `sums` (3, columns) gets the
 * gradients of scale, shift and bias. */
int attentune_norm_back(int64_t rows, int64_t columns, int threads, uint64_t seed, uint32_t threshold, float scale_kept,
                        const float *d_out, const uint16_t *d_out_more, const float *d_sum, const float *normed,
                        const float *inverse, const float *scale, float *d_residual, uint16_t *d_x, float *sums) {
    float *parts = calloc(threads, 12 * columns);
    if (!parts) return 1;
    norm_back_t given = {rows, columns, {seed, threshold, scale_kept}, d_out, d_out_more, d_sum, normed, inverse, scale,
                         d_residual, d_x, parts};
    attentune_in_parallel(norm_back_body, &given, threads);
    attentune_add_up(parts, threads, 3 * columns, sums);
    free(parts);
    return 0;
}
