/* Rotary position embedding (Su et al. 2021, section 3.2.2), in place, of packed projections. */
#include "threads.h"
#include "vectors.h"

typedef struct {
    int64_t rows, length, heads, width; uint16_t *x; const float *cosine, *sine; float sign;
} rotary_t;

static void rotary_body(void *pointer) {
    rotary_t g = *(rotary_t *)pointer;
    share_t own = attentune_share(g.rows);
    int64_t half = g.width / 2;
    for (int64_t i = own.begin; i < own.end; i++) {
        const float *cosine = g.cosine + i % g.length * g.width, *sine = g.sine + i % g.length * g.width;
        for (int64_t head = 0; head < 2 * g.heads; head++) { /* queries and keys, which come before the values */
            uint16_t *x = g.x + (i * 3 * g.heads + head) * g.width;
            for (int64_t e = 0; e < half; e += W) {
                vf first = load_bf16(x + e), second = load_bf16(x + half + e);
                store_bf16(x + e, first * load(cosine + e) - second * load(sine + e) * g.sign);
                store_bf16(x + half + e, second * load(cosine + half + e) + first * load(sine + half + e) * g.sign);
            }
        }
    }
}

/* Rotate queries and keys in `x` (rows, 3 * heads * width) by the angles of their tokens, (length, width); `sign` -1 rotates
 * back. The width is a multiple of 2 * W. */
void attentune_rotary(int64_t rows, int64_t length, int64_t heads, int64_t width, int threads, uint16_t *x,
                      const float *cosine, const float *sine, float sign) {
    rotary_t given = {rows, length, heads, width, x, cosine, sine, sign};
    attentune_in_parallel(rotary_body, &given, threads);
}
