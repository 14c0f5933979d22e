/* Products by the matrix tiles of Intel's AMX, which multiply bf16 numbers and add up in float32.
 *
 * A tile is 16 rows of 64 bytes. The right factor of a product lies in pairs: the numbers of two rows beside each other,
 * (rows / 2, columns) of uint32_t. Sizes are whole numbers of two tiles, S.
 */
#ifndef ATTENTUNE_TILES
#define ATTENTUNE_TILES

#include "vectors.h"

#if defined(__AMX_BF16__) && defined(__AVX512BF16__) && defined(__AVX512BW__) && defined(__linux__)
#define HAS_TILES
#define S 32

/* ---- tables ---- */

typedef struct { uint8_t palette, start, nothing[14]; uint16_t bytes[16]; uint8_t rows[16]; } shape_t;

/* Eight tiles of full size; what was set before, perhaps by PyTorch's products, is kept in `before`. */
static inline void begin(shape_t *before) {
    shape_t wanted = {.palette = 1};
    for (int i = 0; i < 8; i++) { wanted.bytes[i] = 64; wanted.rows[i] = 16; }
    _tile_storeconfig(before);
    __asm__ volatile("" ::: "memory");
    _tile_loadconfig(&wanted);
}

static inline void end(const shape_t *before) {
    if (before->palette) _tile_loadconfig(before);
    else _tile_release();
}

/* Memory of a thread's own, all zeros, dealt out in whole cache lines. */
typedef struct { char *memory; int64_t used; } tables_t;

static inline void *deal(tables_t *tables, int64_t bytes) {
    void *found = tables->memory ? tables->memory + tables->used : NULL;
    tables->used += padded(bytes, 64);
    return found;
}

static inline int allot(tables_t *tables) {
    int64_t bytes = tables->used;
    *tables = (tables_t){aligned_alloc(64, bytes), 0};
    if (tables->memory) memset(tables->memory, 0, bytes);
    return tables->memory != NULL;
}

/* ---- products ---- */

/* out (m, n) float32 = left (m, k) bf16 x right (k, n) bf16 in pairs; added to what is there if `more`. */
static inline void tile_product(const uint16_t *left, int64_t left_step, const uint32_t *right, int64_t right_step,
                                int64_t m, int64_t k, int64_t n, float *out, int64_t out_step, int more) {
    __asm__ volatile("" ::: "memory"); /* the compiler does not know that tiles read and write memory */
    for (int64_t i = 0; i < m; i += S)
        for (int64_t j = 0; j < n; j += S) {
            float *to = out + i * out_step + j, *below = to + 16 * out_step;
            if (more) {
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

static inline vu pair(vf first, vf second) {
    const __m512i beside = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6, 21, 5,
                                            20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
    return (vu)_mm512_permutexvar_epi16(beside, (__m512i)_mm512_cvtne2ps_pbh((__m512)second, (__m512)first));
}

/* (rows, columns) in pairs. */
static inline void pair_rows(const float *from, int64_t rows, int64_t columns, uint32_t *to) {
    for (int64_t i = 0; i < rows; i += 2)
        for (int64_t j = 0; j < columns; j += W)
            *(vu *)(to + i / 2 * columns + j) = pair(load(from + i * columns + j), load(from + (i + 1) * columns + j));
}

static inline void halve(const float *from, int64_t count, uint16_t *to) {
    for (int64_t at = 0; at < count; at += W) narrow(to + at, load(from + at));
}

#endif
#endif
