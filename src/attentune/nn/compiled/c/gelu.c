/* out = gelu(x + bias), and out = gelu(x) * gate, forward and backward: the exact GELU, or its approximation by tanh. */
#include "threads.h"
#include "vectors.h"

static inline vf absolute(vf x) { return (vf)((vi)x & 0x7fffffff); }

/* Phi(x), the standard normal cumulative distribution. Abramowitz and Stegun 7.1.28, without exp; error below 2e-7. */
static inline vf normal_cdf(vf x) {
    vf away = absolute(x) * 0.70710678f;
    vi is_near = away < broadcast(6.0f); /* beyond, the tail is below float32 precision at 1 */
    away = select_lanes(is_near, away, broadcast(6.0f));
    vf root = (((((0.0000430638f * away + 0.0002765672f) * away + 0.0001520143f) * away + 0.0092705272f) * away
                + 0.0422820123f) * away + 0.0705230784f) * away + 1.0f;
    root *= root;
    root *= root;
    root *= root;
    vf tail = select_lanes(is_near, 0.5f * reciprocal(root * root), broadcast(0.0f));
    return select_lanes(x < broadcast(0.0f), tail, 1.0f - tail);
}

/* Phi(x) and the density. Abramowitz and Stegun 7.1.26, which uses the density; error below 1.5e-7. */
static inline vf normal_cdf_and_density(vf x, vf *density) {
    vf away = absolute(x) * 0.70710678f;
    away = select_lanes(away < broadcast(100.0f), away, broadcast(100.0f));
    vf t = reciprocal(1.0f + 0.3275911f * away);
    vf gaussian = exponential(-away * away);
    vf tail = ((((1.061405429f * t - 1.453152027f) * t + 1.421413741f) * t - 0.284496736f) * t + 0.254829592f) * t * gaussian;
    *density = gaussian * 0.39894228f;
    return select_lanes(x < broadcast(0.0f), 0.5f * tail, 1.0f - 0.5f * tail);
}

/* The approximation x sigmoid(u) with u = 2 sqrt(2 / pi) (x + 0.044715 x^3), which is x (1 + tanh(u / 2)) / 2
 * (Hendrycks and Gimpel 2016, section 2). Returns sigmoid(u); `slope` is its derivative. */
static inline vf tanh_cdf_and_slope(vf x, vf *slope) {
    vf u = 1.59576912f * x * (1.0f + 0.044715f * x * x);
    vi is_above = u > broadcast(-60.0f), is_near = is_above & (u < broadcast(60.0f)); /* else exp or x^2 may overflow */
    u = select_lanes(is_above, u, broadcast(-60.0f));
    vf cdf = select_lanes(is_above, reciprocal(1.0f + exponential(-u)), broadcast(0.0f));
    *slope = select_lanes(is_near, cdf * (1.0f - cdf) * 1.59576912f * (1.0f + 0.134145f * x * x), broadcast(0.0f));
    return cdf;
}

typedef struct {
    int64_t rows, columns; int is_tanh;
    const uint16_t *x; const float *bias; uint16_t *d_out, *out; float *parts;
} gelu_t;

static inline __attribute__((always_inline)) void gelu_rows(gelu_t g, int is_tanh) {
    share_t own = attentune_share(g.rows);
    for (int64_t i = own.begin; i < own.end; i++)
        for (int64_t j = 0, at = i * g.columns; j < g.columns; j += W) {
            vf slope, x = load_bf16(g.x + at + j) + load(g.bias + j);
            store_bf16(g.out + at + j, x * (is_tanh ? tanh_cdf_and_slope(x, &slope) : normal_cdf(x)));
        }
}

static void gelu_body(void *pointer) {
    gelu_t g = *(gelu_t *)pointer;
    if (g.is_tanh) gelu_rows(g, 1);
    else gelu_rows(g, 0);
}

void attentune_gelu(int64_t rows, int64_t columns, int threads, int is_tanh, const uint16_t *x, const float *bias,
                    uint16_t *out) {
    gelu_t given = {rows, columns, is_tanh, x, bias, NULL, out, NULL};
    attentune_in_parallel(gelu_body, &given, threads);
}

static inline __attribute__((always_inline)) void gelu_back_rows(gelu_t g, int is_tanh) {
    share_t own = attentune_share(g.rows);
    float *d_bias = g.parts + own.number * g.columns;
    for (int64_t i = own.begin; i < own.end; i++)
        for (int64_t j = 0, at = i * g.columns; j < g.columns; j += W) {
            vf slope, x = load_bf16(g.x + at + j) + load(g.bias + j);
            vf cdf = is_tanh ? tanh_cdf_and_slope(x, &slope) : normal_cdf_and_density(x, &slope);
            vf d = load_bf16(g.d_out + at + j) * (cdf + x * slope);
            store(d_bias + j, load(d_bias + j) + d);
            store_bf16(g.d_out + at + j, d);
            store_bf16(g.out + at + j, x * cdf);
        }
}

static void gelu_back_body(void *pointer) {
    gelu_t g = *(gelu_t *)pointer;
    if (g.is_tanh) gelu_back_rows(g, 1);
    else gelu_back_rows(g, 0);
}

/* `d_out` is overwritten by the gradient of x; `out` is the forward output, recomputed. */
int attentune_gelu_back(int64_t rows, int64_t columns, int threads, int is_tanh, const uint16_t *x, const float *bias,
                        uint16_t *d_out, uint16_t *out, float *d_bias) {
    float *parts = calloc(threads, 4 * columns);
    if (!parts) return 1;
    gelu_t given = {rows, columns, is_tanh, x, bias, d_out, out, parts};
    attentune_in_parallel(gelu_back_body, &given, threads);
    attentune_add_up(parts, threads, columns, d_bias);
    free(parts);
    return 0;
}

/* ---- gated ---- */

typedef struct {
    int64_t rows, columns; int is_tanh; const uint16_t *x, *d_out; uint16_t *d_x, *out;
} geglu_t;

static inline __attribute__((always_inline)) void geglu_rows(geglu_t g, int is_tanh) {
    share_t own = attentune_share(g.rows);
    for (int64_t i = own.begin; i < own.end; i++)
        for (int64_t j = 0; j < g.columns; j += W) {
            int64_t at = 2 * i * g.columns + j, gate_at = at + g.columns;
            vf slope, x = load_bf16(g.x + at), gate = load_bf16(g.x + gate_at);
            vf cdf = is_tanh ? tanh_cdf_and_slope(x, &slope) : normal_cdf_and_density(x, &slope);
            store_bf16(g.out + i * g.columns + j, x * cdf * gate);
            if (!g.d_out) continue;
            vf d = load_bf16(g.d_out + i * g.columns + j);
            store_bf16(g.d_x + at, d * gate * (cdf + x * slope));
            store_bf16(g.d_x + gate_at, d * x * cdf);
        }
}

static void geglu_body(void *pointer) {
    geglu_t g = *(geglu_t *)pointer;
    if (g.is_tanh) geglu_rows(g, 1);
    else geglu_rows(g, 0);
}

/* `x` (rows, 2 * columns) has x and the gate; with `d_out`, the gradient of `out`, also computes that of `x`, `d_x`. */
void attentune_geglu(int64_t rows, int64_t columns, int threads, int is_tanh, const uint16_t *x, const uint16_t *d_out,
                     uint16_t *d_x, uint16_t *out) {
    geglu_t given = {rows, columns, is_tanh, x, d_out, d_x, out};
    attentune_in_parallel(geglu_body, &given, threads);
}
