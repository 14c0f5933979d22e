/* Vectors of 16 float32 numbers, conversion from and to bf16 (as uint16_t), and counter-based dropout masks.
 *
 * The dropout mask is a function of (seed, row, column), so the backward pass recomputes it instead of storing it.
 */
#ifndef ATTENTUNE_VECTORS
#define ATTENTUNE_VECTORS

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#ifdef __AVX512F__
#include <immintrin.h>
#endif

#define W 16 /* float32 numbers in a vector */
typedef float vf __attribute__((vector_size(4 * W), aligned(4)));
typedef int32_t vi __attribute__((vector_size(4 * W), aligned(4)));
typedef uint32_t vu __attribute__((vector_size(4 * W), aligned(4)));
typedef uint16_t vh __attribute__((vector_size(2 * W), aligned(2)));

static inline vf broadcast(float x) { return (vf){} + x; }
static inline vf load(const float *p) { return *(const vf *)p; }
static inline void store(float *p, vf x) { *(vf *)p = x; }

static inline vf select_lanes(vi test, vf yes, vf no) { return (vf)((test & (vi)yes) | (~test & (vi)no)); }

/* Conversions and reductions. With AVX-512 they are written as intrinsics, since GCC would emit many instructions. */
#ifdef __AVX512F__
static inline vf load_bf16(const uint16_t *p) {
    return (vf)_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)p)), 16);
}

static inline float reduce_sum(vf x) { return _mm512_reduce_add_ps((__m512)x); }
static inline float reduce_max(vf x) { return _mm512_reduce_max_ps((__m512)x); }
static inline vf maximum(vf x, vf than) { return (vf)_mm512_max_ps((__m512)x, (__m512)than); } /* returns `than` if x is NaN */
#else
static inline vf load_bf16(const uint16_t *p) { return (vf)(__builtin_convertvector(*(const vh *)p, vu) << 16); }

static inline float reduce_sum(vf x) {
    float total = 0;
    for (int i = 0; i < W; i++) total += x[i];
    return total;
}

static inline float reduce_max(vf x) {
    float most = x[0];
    for (int i = 1; i < W; i++) most = x[i] > most ? x[i] : most;
    return most;
}

static inline vf maximum(vf x, vf than) { return select_lanes(x > than, x, than); }
#endif

#ifdef __AVX512BF16__
static inline void store_bf16(uint16_t *p, vf x) { _mm256_storeu_si256((__m256i *)p, (__m256i)_mm512_cvtneps_pbh((__m512)x)); }
#else
static inline void store_bf16(uint16_t *p, vf x) { /* round to nearest even; NaN stays NaN */
    vu bits = (vu)x;
    vu odd = (bits >> 16) & 1;
    vu rounded = (bits + 0x7fff + odd) >> 16;
    vu is_nan = (vu)((bits & 0x7fffffff) > 0x7f800000);
    *(vh *)p = __builtin_convertvector((is_nan & 0x7fc0) | (~is_nan & rounded), vh);
}
#endif

/* exp with an error of 2 ulp; 0 below -87, NaN for NaN; undefined above 88. */
static inline vf exponential(vf x) {
#ifdef __AVX512F__
    vf whole = (vf)_mm512_roundscale_ps((__m512)(x * 1.44269504f), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
#else
    vi is_low = x < broadcast(-87.0f);
    x = select_lanes(is_low, broadcast(-87.0f), x);
    vf whole = (x * 1.44269504f + 12582912.0f) - 12582912.0f;
#endif
    vf rest = (x - whole * 0.693359375f) + whole * 2.12194440e-4f;
    vf poly = ((((1.9875691500e-4f * rest + 1.3981999507e-3f) * rest + 8.3334519073e-3f) * rest + 4.1665795894e-2f) * rest
               + 1.6666665459e-1f) * rest + 5.0000001201e-1f;
    vf value = poly * rest * rest + rest + 1.0f;
#ifdef __AVX512F__
    __mmask16 is_shown = _mm512_cmp_ps_mask((__m512)x, (__m512)broadcast(-87.0f), _CMP_NLT_UQ); /* NaN too */
    return (vf)_mm512_maskz_scalef_ps(is_shown, (__m512)value, (__m512)whole);
#else
    vi power = (__builtin_convertvector(whole, vi) + 127) << 23;
    return select_lanes(is_low, broadcast(0.0f), value * (vf)power);
#endif
}

/* 1 / x with an error of 2 ulp, for x neither tiny nor huge. */
static inline vf reciprocal(vf x) {
#ifdef __AVX512F__
    vf guess = (vf)_mm512_rcp14_ps((__m512)x);
    return guess * (2.0f - x * guess);
#else
    return 1.0f / x;
#endif
}

static inline int64_t padded(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

/* ---- dropout ---- */

/* An element is dropped if its 32 random bits are below `threshold`; kept ones are multiplied by `scale_kept`. */
typedef struct { uint64_t seed; uint32_t threshold; float scale_kept; } dropout_t;

static inline uint64_t mix_bits(uint64_t x) { /* the finaliser of splitmix64 */
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
    return x ^ (x >> 31);
}

static inline uint64_t row_key(dropout_t dropout,
                               uint64_t row) { return mix_bits(dropout.seed + (row + 1) * 0x9e3779b97f4a7c15ull); }

static const vu COUNT = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};

/* All bits set where the element is kept. */
static inline vi keep_mask(dropout_t dropout, uint64_t key, uint32_t column) {
    vu x = ((COUNT + column) * 0x9e3779b9u) ^ (uint32_t)key;
    x = (x ^ (x >> 16)) * 0x7feb352du;
    x = (x + (uint32_t)(key >> 32)) ^ (x >> 15);
    x = x * 0x846ca68bu;
    x = x ^ (x >> 16);
    return (vi)(x >= ((vu){} + dropout.threshold));
}

static inline vf apply_dropout(dropout_t dropout, uint64_t key, uint32_t column, vf x) {
    return dropout.threshold ? (vf)((vi)(x * dropout.scale_kept) & keep_mask(dropout, key, column)) : x;
}

#endif
