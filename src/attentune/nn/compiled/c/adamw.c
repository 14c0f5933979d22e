/* AdamW's step over many tensors in one pass: gradients in float32 or bf16 are scaled, moments and weights updated,
 * weights that have a copy in bf16 written there too.
 *
 * Source: Loshchilov and Hutter 2019, algorithm 2, in the order of operations of PyTorch's fused AdamW.
 */
#include "threads.h"
#include "vectors.h"

typedef struct {
    float rate, decay;                /* decay: the factor of the weights, 1 - rate x weight decay */
    float share_1, beta_2, share_2;   /* shares: 1 - beta_1 and 1 - beta_2, not computed in float32, where they are rough */
    float epsilon, correction_1, correction_2; /* corrections: 1 - beta_1^step; sqrt(1 - beta_2^step) */
    float scale;                      /* gradients are divided by it */
} adamw_t;

typedef struct {
    int64_t tables;
    const int64_t *counts;
    const int8_t *is_bf16; /* for each gradient */
    float *const *weight;
    const void *const *gradient;
    float *const *mean, *const *square;
    uint16_t *const *copy; /* NULL for a weight without one */
    adamw_t with;
} adamw_step_t;

static inline vf root(vf x) {
#ifdef __AVX512F__
    return (vf)_mm512_sqrt_ps((__m512)x);
#else
    vf y;
    for (int i = 0; i < W; i++) y[i] = sqrtf(x[i]);
    return y;
#endif
}

static inline vf update(const adamw_t *a, float *weight, vf gradient, float *mean, float *square) {
    gradient = gradient / a->scale;
    vf m = load(mean), v = load(square);
    m = m + a->share_1 * (gradient - m);
    v = a->beta_2 * v + a->share_2 * gradient * gradient;
    store(mean, m);
    store(square, v);
    vf w = load(weight) * a->decay - a->rate / a->correction_1 * m / (root(v) / a->correction_2 + a->epsilon);
    store(weight, w);
    return w;
}

static void adamw_body(void *pointer) {
    adamw_step_t g = *(adamw_step_t *)pointer;
    for (int64_t k = 0; k < g.tables; k++) {
        int64_t count = g.counts[k], vectors = (count + W - 1) / W;
        share_t own = attentune_share(vectors);
        for (int64_t n = own.begin; n < own.end; n++) {
            int64_t at = n * W, rest = count - at < W ? count - at : W;
            float *weight = g.weight[k] + at, *mean = g.mean[k] + at, *square = g.square[k] + at;
            const float *wide = (const float *)g.gradient[k] + at;
            const uint16_t *half = (const uint16_t *)g.gradient[k] + at;
            if (rest == W) {
                vf w = update(&g.with, weight, g.is_bf16[k] ? load_bf16(half) : load(wide), mean, square);
                if (g.copy[k]) store_bf16(g.copy[k] + at, w);
                continue;
            }
            float w[W] = {}, m[W] = {}, v[W] = {}, d[W] = {};
            uint16_t h[W] = {};
            memcpy(w, weight, 4 * rest);
            memcpy(m, mean, 4 * rest);
            memcpy(v, square, 4 * rest);
            if (g.is_bf16[k]) memcpy(h, half, 2 * rest);
            else memcpy(d, wide, 4 * rest);
            store_bf16(h, update(&g.with, w, g.is_bf16[k] ? load_bf16(h) : load(d), m, v));
            if (g.copy[k]) memcpy(g.copy[k] + at, h, 2 * rest);
            memcpy(weight, w, 4 * rest);
            memcpy(mean, m, 4 * rest);
            memcpy(square, v, 4 * rest);
        }
    }
}

void attentune_adamw(int64_t tables, int threads, const int64_t *counts, const int8_t *is_bf16, float *const *weight,
                     const void *const *gradient, float *const *mean, float *const *square, uint16_t *const *copy,
                     float rate, float decay, float share_1, float beta_2, float share_2, float epsilon,
                     float correction_1, float correction_2, float scale) {
    adamw_t with = {rate, decay, share_1, beta_2, share_2, epsilon, correction_1, correction_2, scale};
    adamw_step_t given = {tables, counts, is_bf16, weight, gradient, mean, square, copy, with};
    attentune_in_parallel(adamw_body, &given, threads);
}
