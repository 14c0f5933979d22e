/* Matrix products by Intel AMX: bf16 factors, float32 sums.
 *
 * An AMX tile register holds 16 rows of 64 bytes. The right factor of a product is interleaved: the elements of two
 * consecutive rows side by side, (rows / 2, columns) of uint32_t, as _tile_dpbf16ps expects. All sizes are multiples of S,
 * two tiles.
 */
#ifndef ATTENTUNE_AMX
#define ATTENTUNE_AMX

#include "vectors.h"

#if defined(__AMX_BF16__) && defined(__AVX512BF16__) && defined(__AVX512BW__) && defined(__linux__)
#define HAS_AMX
#define S 32

/* ---- tile configuration ---- */

typedef struct { uint8_t palette, start, nothing[14]; uint16_t bytes[16]; uint8_t rows[16]; } tile_config_t;

/* Configure eight tiles of full size; the previous configuration, perhaps of a PyTorch kernel, is saved in `before`. */
static inline void amx_begin(tile_config_t *before) {
    tile_config_t wanted = {.palette = 1};
    for (int i = 0; i < 8; i++) { wanted.bytes[i] = 64; wanted.rows[i] = 16; }
    _tile_storeconfig(before);
    __asm__ volatile("" ::: "memory");
    _tile_loadconfig(&wanted);
}

static inline void amx_end(const tile_config_t *before) {
    if (before->palette) _tile_loadconfig(before);
    else _tile_release();
}

/* ---- products ---- */

/* out (m, n) float32 = left (m, k) bf16 x right (k, n) bf16, interleaved; added to `out` if `accumulate`. */
static inline void amx_product(const uint16_t *left, int64_t left_step, const uint32_t *right, int64_t right_step,
                                int64_t m, int64_t k, int64_t n, float *out, int64_t out_step, int accumulate) {
    __asm__ volatile("" ::: "memory"); /* tells the compiler that tile instructions access memory */
    for (int64_t i = 0; i < m; i += S)
        for (int64_t j = 0; j < n; j += S) {
            float *to = out + i * out_step + j, *below = to + 16 * out_step;
            if (accumulate) {
                _tile_loadd(0, to, 4 * out_step);
                _tile_loadd(1, to + 16, 4 * out_step);
                _tile_loadd(2, below, 4 * out_step);
                _tile_loadd(3, below + 16, 4 * out_step);
            } else {
                _tile_zero(0);
                _tile_zero(1);
                _tile_zero(2);
                _tile_zero(3);
            }
            for (int64_t p = 0; p < k; p += S) {
                _tile_loadd(4, left + i * left_step + p, 2 * left_step);
                _tile_loadd(5, left + (i + 16) * left_step + p, 2 * left_step);
                _tile_loadd(6, right + p / 2 * right_step + j, 4 * right_step);
                _tile_loadd(7, right + p / 2 * right_step + j + 16, 4 * right_step);
                _tile_dpbf16ps(0, 4, 6);
                _tile_dpbf16ps(1, 4, 7);
                _tile_dpbf16ps(2, 5, 6);
                _tile_dpbf16ps(3, 5, 7);
            }
            _tile_stored(0, to, 4 * out_step);
            _tile_stored(1, to + 16, 4 * out_step);
            _tile_stored(2, below, 4 * out_step);
            _tile_stored(3, below + 16, 4 * out_step);
        }
    __asm__ volatile("" ::: "memory");
}

static inline vu interleave(vf first, vf second) {
    const __m512i order = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6, 21, 5,
                                            20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
    return (vu)_mm512_permutexvar_epi16(order, (__m512i)_mm512_cvtne2ps_pbh((__m512)second, (__m512)first));
}

/* Convert (rows, columns) float32 to bf16, interleaved. */
static inline void interleave_rows(const float *from, int64_t rows, int64_t columns, uint32_t *to) {
    for (int64_t i = 0; i < rows; i += 2)
        for (int64_t j = 0; j < columns; j += W)
            *(vu *)(to + i / 2 * columns + j) = interleave(load(from + i * columns + j), load(from + (i + 1) * columns + j));
}

static inline void to_bf16(const float *from, int64_t count, uint16_t *to) {
    for (int64_t at = 0; at < count; at += W) store_bf16(to + at, load(from + at));
}

#endif
#endif
