/* out = gelu(x + bias), forward and backward. */
#include "threads.h"
#include "vectors.h"

static inline vf magnitude(vf x) { return (vf)((vi)x & 0x7fffffff); }

/* Phi(x), the normal distribution's. Abramowitz and Stegun 7.1.28, which needs no exp: within 2e-7. */
static inline vf normal(vf x) {
    vf away = magnitude(x) * 0.70710678f;
    vi is_near = away < all(6.0f); /* beyond, the tail is less than a float32 of 1 shows */
    away = choose(is_near, away, all(6.0f));
    vf root = (((((0.0000430638f * away + 0.0002765672f) * away + 0.0001520143f) * away + 0.0092705272f) * away
                + 0.0422820123f) * away + 0.0705230784f) * away + 1.0f;
    root *= root;
    root *= root;
    root *= root;
    vf tail = choose(is_near, 0.5f * inverted(root * root), all(0.0f));
    return choose(x < all(0.0f), tail, 1.0f - tail);
}

/* Phi(x) and its density. Abramowitz and Stegun 7.1.26, which uses the density: within 1.5e-7. */
static inline vf normal_and_density(vf x, vf *density) {
    vf away = magnitude(x) * 0.70710678f;
    away = choose(away < all(100.0f), away, all(100.0f));
    vf t = inverted(1.0f + 0.3275911f * away);
    vf bell = exponential(-away * away);
    vf tail = ((((1.061405429f * t - 1.453152027f) * t + 1.421413741f) * t - 0.284496736f) * t + 0.254829592f) * t * bell;
    *density = bell * 0.39894228f;
    return choose(x < all(0.0f), 0.5f * tail, 1.0f - 0.5f * tail);
}

typedef struct {
    int64_t rows, columns;
    const uint16_t *x; const float *bias; uint16_t *d_out, *out; float *parts;
} gelu_t;

static void gelu_body(void *pointer) {
    gelu_t g = *(gelu_t *)pointer;
    share_t own = attentune_share(g.rows);
    for (int64_t i = own.begin; i < own.end; i++)
        for (int64_t j = 0, at = i * g.columns; j < g.columns; j += W) {
            vf x = wide(g.x + at + j) + load(g.bias + j);
            narrow(g.out + at + j, x * normal(x));
        }
}

void attentune_gelu(int64_t rows, int64_t columns, int threads, const uint16_t *x, const float *bias, uint16_t *out) {
    gelu_t given = {rows, columns, x, bias, NULL, out, NULL};
    attentune_in_parallel(gelu_body, &given, threads);
}

static void gelu_back_body(void *pointer) {
    gelu_t g = *(gelu_t *)pointer;
    share_t own = attentune_share(g.rows);
    float *d_bias = g.parts + own.number * g.columns;
    for (int64_t i = own.begin; i < own.end; i++)
        for (int64_t j = 0, at = i * g.columns; j < g.columns; j += W) {
            vf density, x = wide(g.x + at + j) + load(g.bias + j);
            vf share_below = normal_and_density(x, &density);
            vf d = wide(g.d_out + at + j) * (share_below + x * density);
            store(d_bias + j, load(d_bias + j) + d);
            narrow(g.d_out + at + j, d);
            narrow(g.out + at + j, x * share_below);
        }
}

/* `d_out` becomes the gradient of x; `out` is computed again. */
int attentune_gelu_back(int64_t rows, int64_t columns, int threads, const uint16_t *x, const float *bias,
                        uint16_t *d_out, uint16_t *out, float *d_bias) {
    float *parts = calloc(threads, 4 * columns);
    if (!parts) return 1;
    gelu_t given = {rows, columns, x, bias, d_out, out, parts};
    attentune_in_parallel(gelu_back_body, &given, threads);
    attentune_add_up(parts, threads, columns, d_bias);
    free(parts);
    return 0;
}
