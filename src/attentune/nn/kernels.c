/* The parts of a BERT layer's training step that are no products of weights: attention, dropout, sums, normalisation and
 * GELU, forward and backward, each in one pass over the memory.
 *
 * bf16 numbers are passed as uint16_t; sums are float32. Tables are row-major and contiguous. Rows (or heads) are divided
 * among threads in fixed shares, so the same number of threads gives the same bits. Threads are those of the OpenMP that
 * PyTorch has loaded, whose functions `attentune_threads` is given: a second set would fight with it for the cores.
 *
 * What dropout drops is a function of (seed, row, column) and is computed again in the backward pass.
 */
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

typedef void (*parallel_fn)(void (*)(void *), void *, unsigned, unsigned);
typedef int (*number_fn)(void);
static parallel_fn run_parallel;
static number_fn thread_number, thread_count;

/* GOMP_parallel, omp_get_thread_num and omp_get_num_threads. */
void attentune_threads(void *parallel, void *number, void *count) {
    run_parallel = (parallel_fn)parallel;
    thread_number = (number_fn)number;
    thread_count = (number_fn)count;
}

/* ---- vectors ---- */

static inline vf all(float x) { return (vf){} + x; }
static inline vf load(const float *p) { return *(const vf *)p; }
static inline void store(float *p, vf x) { *(vf *)p = x; }

/* bf16 to float32 and back, and the sum over a vector: GCC makes many instructions of what has one on some processors. */
#ifdef __AVX512F__
static inline vf wide(const uint16_t *p) {
    return (vf)_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)p)), 16);
}

static inline float sum(vf x) { return _mm512_reduce_add_ps((__m512)x); }
#else
static inline vf wide(const uint16_t *p) { return (vf)(__builtin_convertvector(*(const vh *)p, vu) << 16); }

static inline float sum(vf x) {
    float total = 0;
    for (int i = 0; i < W; i++) total += x[i];
    return total;
}
#endif

#ifdef __AVX512BF16__
static inline void narrow(uint16_t *p, vf x) { _mm256_storeu_si256((__m256i *)p, (__m256i)_mm512_cvtneps_pbh((__m512)x)); }
#else
static inline void narrow(uint16_t *p, vf x) { /* to the nearest, ties to even; NaN stays NaN */
    vu bits = (vu)x;
    vu odd = (bits >> 16) & 1;
    vu rounded = (bits + 0x7fff + odd) >> 16;
    vu is_nan = (vu)((bits & 0x7fffffff) > 0x7f800000);
    *(vh *)p = __builtin_convertvector((is_nan & 0x7fc0) | (~is_nan & rounded), vh);
}
#endif

static inline float largest(vf x) {
    float most = x[0];
    for (int i = 1; i < W; i++) most = x[i] > most ? x[i] : most;
    return most;
}

static inline vf choose(vi test, vf yes, vf no) { return (vf)((test & (vi)yes) | (~test & (vi)no)); }

/* exp, to 2 units in the last place; 0 below -87, NaN for NaN. Not for numbers above 88. */
static inline vf exponential(vf x) {
    vi is_low = x < all(-87.0f);
    vf y = choose(is_low, all(-87.0f), x);
    vf whole = (y * 1.44269504f + 12582912.0f) - 12582912.0f;
    vf rest = (y - whole * 0.693359375f) + whole * 2.12194440e-4f;
    vf poly = ((((1.9875691500e-4f * rest + 1.3981999507e-3f) * rest + 8.3334519073e-3f) * rest + 4.1665795894e-2f) * rest
               + 1.6666665459e-1f) * rest + 5.0000001201e-1f;
    vf value = poly * rest * rest + rest + 1.0f;
    vi power = (__builtin_convertvector(whole, vi) + 127) << 23;
    return choose(is_low, all(0.0f), value * (vf)power);
}

/* The inverse of numbers that are neither tiny nor huge, to 2 units in the last place. */
static inline vf inverted(vf x) {
#ifdef __AVX512F__
    vf guess = (vf)_mm512_rcp14_ps((__m512)x);
    return guess * (2.0f - x * guess);
#else
    return 1.0f / x;
#endif
}

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

/* ---- dropout ---- */

typedef struct { uint64_t seed; uint32_t level; float up; } drop_t; /* dropped if the draw is below the level */

static inline uint64_t mixed(uint64_t x) { /* the finaliser of splitmix64 */
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
    return x ^ (x >> 31);
}

static inline uint64_t row_key(drop_t drop, uint64_t row) { return mixed(drop.seed + (row + 1) * 0x9e3779b97f4a7c15ull); }

static const vu COUNT = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};

/* All bits set where the number is kept. */
static inline vi kept(drop_t drop, uint64_t key, uint32_t column) {
    vu x = ((COUNT + column) * 0x9e3779b9u) ^ (uint32_t)key;
    x = (x ^ (x >> 16)) * 0x7feb352du;
    x = (x + (uint32_t)(key >> 32)) ^ (x >> 15);
    x = x * 0x846ca68bu;
    x = x ^ (x >> 16);
    return (vi)(x >= ((vu){} + drop.level));
}

static inline vf dropped(drop_t drop, uint64_t key, uint32_t column, vf x) {
    return drop.level ? (vf)((vi)(x * drop.up) & kept(drop, key, column)) : x;
}

/* ---- shares ---- */

typedef struct { int64_t begin, end; int number; } share_t;

/* This thread's share; of fewer threads than were asked for, where OpenMP gave fewer. */
static inline share_t share(int64_t count) {
    int64_t number = thread_number(), threads = thread_count();
    return (share_t){count * number / threads, count * (number + 1) / threads, (int)number};
}

static void in_parallel(void (*body)(void *), void *given, int threads) {
    run_parallel(body, given, (unsigned)threads, 0);
}

/* The threads' own sums, (threads, columns), added in order; those of a thread that never ran are zero. */
static void add_up(const float *parts, int threads, int64_t columns, float *out) {
    memcpy(out, parts, 4 * columns);
    for (int number = 1; number < threads; number++)
        for (int64_t j = 0; j < columns; j++) out[j] += parts[number * columns + j];
}

/* ---- out = norm(residual + dropout(x + bias)) ---- */

typedef struct {
    int64_t rows, columns; drop_t drop; float epsilon;
    const uint16_t *x; const float *bias, *residual, *scale, *shift;
    float *out; uint16_t *out_narrow; float *normed, *inverse;
} norm_t;

static void norm_body(void *pointer) {
    norm_t g = *(norm_t *)pointer;
    share_t own = share(g.rows);
    for (int64_t i = own.begin; i < own.end; i++) {
        int64_t at = i * g.columns;
        float *normed = g.normed ? g.normed + at : g.out + at;
        uint64_t key = row_key(g.drop, i);
        vf total = {};
        for (int64_t j = 0; j < g.columns; j += W) {
            vf x = load(g.residual + at + j) + dropped(g.drop, key, j, wide(g.x + at + j) + load(g.bias + j));
            store(normed + j, x);
            total += x;
        }
        float mean = sum(total) / g.columns;
        vf squares = {};
        for (int64_t j = 0; j < g.columns; j += W) {
            vf x = load(normed + j) - mean;
            squares += x * x;
        }
        float inverse = 1.0f / sqrtf(sum(squares) / g.columns + g.epsilon);
        if (g.inverse) g.inverse[i] = inverse;
        for (int64_t j = 0; j < g.columns; j += W) {
            vf x = (load(normed + j) - mean) * inverse;
            vf y = x * load(g.scale + j) + load(g.shift + j);
            store(normed + j, x);
            store(g.out + at + j, y);
            narrow(g.out_narrow + at + j, y);
        }
    }
}

/* `normed` and `inverse`, for the backward pass, may be NULL. */
void attentune_norm(int64_t rows, int64_t columns, int threads, uint64_t seed, uint32_t level, float up, float epsilon,
                    const uint16_t *x, const float *bias, const float *residual, const float *scale, const float *shift,
                    float *out, uint16_t *out_narrow, float *normed, float *inverse) {
    norm_t given = {rows, columns, {seed, level, up}, epsilon, x, bias, residual, scale, shift,
                    out, out_narrow, normed, inverse};
    in_parallel(norm_body, &given, threads);
}

typedef struct {
    int64_t rows, columns; drop_t drop;
    const float *d_out; const uint16_t *d_out_more; const float *normed, *inverse, *scale;
    float *d_residual; uint16_t *d_x; float *parts;
} norm_back_t;

static void norm_back_body(void *pointer) {
    norm_back_t g = *(norm_back_t *)pointer;
    share_t own = share(g.rows);
    float *d_scale = g.parts + own.number * 3 * g.columns, *d_shift = d_scale + g.columns, *d_bias = d_shift + g.columns;
    for (int64_t i = own.begin; i < own.end; i++) {
        int64_t at = i * g.columns;
        uint64_t key = row_key(g.drop, i);
        vf plain = {}, weighted = {};
        for (int64_t j = 0; j < g.columns; j += W) {
            vf d = load(g.d_out + at + j), x = load(g.normed + at + j);
            if (g.d_out_more) d += wide(g.d_out_more + at + j);
            store(d_scale + j, load(d_scale + j) + d * x);
            store(d_shift + j, load(d_shift + j) + d);
            d *= load(g.scale + j);
            store(g.d_residual + at + j, d);
            plain += d;
            weighted += d * x;
        }
        float mean = sum(plain) / g.columns, slope = sum(weighted) / g.columns, inverse = g.inverse[i];
        for (int64_t j = 0; j < g.columns; j += W) {
            vf d = (load(g.d_residual + at + j) - mean - load(g.normed + at + j) * slope) * inverse;
            vf d_x = dropped(g.drop, key, j, d);
            store(g.d_residual + at + j, d);
            store(d_bias + j, load(d_bias + j) + d_x);
            narrow(g.d_x + at + j, d_x);
        }
    }
}

/* `d_out_more` may be NULL; `sums` becomes (3, columns): the gradients of scale, shift and bias. */
int attentune_norm_back(int64_t rows, int64_t columns, int threads, uint64_t seed, uint32_t level, float up,
                        const float *d_out, const uint16_t *d_out_more, const float *normed, const float *inverse,
                        const float *scale, float *d_residual, uint16_t *d_x, float *sums) {
    float *parts = calloc(threads, 12 * columns);
    if (!parts) return 1;
    norm_back_t given = {rows, columns, {seed, level, up}, d_out, d_out_more, normed, inverse, scale,
                         d_residual, d_x, parts};
    in_parallel(norm_back_body, &given, threads);
    add_up(parts, threads, 3 * columns, sums);
    free(parts);
    return 0;
}

/* ---- out = gelu(x + bias) ---- */

typedef struct {
    int64_t rows, columns;
    const uint16_t *x; const float *bias; uint16_t *d_out, *out; float *parts;
} gelu_t;

static void gelu_body(void *pointer) {
    gelu_t g = *(gelu_t *)pointer;
    share_t own = share(g.rows);
    for (int64_t i = own.begin; i < own.end; i++)
        for (int64_t j = 0, at = i * g.columns; j < g.columns; j += W) {
            vf x = wide(g.x + at + j) + load(g.bias + j);
            narrow(g.out + at + j, x * normal(x));
        }
}

void attentune_gelu(int64_t rows, int64_t columns, int threads, const uint16_t *x, const float *bias, uint16_t *out) {
    gelu_t given = {rows, columns, x, bias, NULL, out, NULL};
    in_parallel(gelu_body, &given, threads);
}

static void gelu_back_body(void *pointer) {
    gelu_t g = *(gelu_t *)pointer;
    share_t own = share(g.rows);
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
    in_parallel(gelu_back_body, &given, threads);
    add_up(parts, threads, columns, d_bias);
    free(parts);
    return 0;
}

/* ---- out += more ---- */

typedef struct { int64_t count; float *out; const uint16_t *more; } add_t;

static void add_body(void *pointer) {
    add_t g = *(add_t *)pointer;
    share_t own = share(g.count / W);
    for (int64_t at = own.begin * W; at < own.end * W; at += W) store(g.out + at, load(g.out + at) + wide(g.more + at));
}

void attentune_add(int64_t count, int threads, float *out, const uint16_t *more) {
    add_t given = {count, out, more};
    in_parallel(add_body, &given, threads);
}

/* ---- attention ----
 *
 * Query, key and value of a token lie beside each other: `x` is (batch * length, 3 * heads * width), without its bias.
 * A head's own numbers are copied to float32 tables, their length padded to whole vectors with zeros; its width is whole
 * vectors. Queries go in blocks of R: their scores lie in the cache, and no table of probabilities is ever kept.
 */

#define R 8 /* queries in a block */

typedef struct {
    int64_t batch, length, heads, width; drop_t drop; float scaling;
    const uint16_t *x; const float *bias, *mask; int64_t mask_row, mask_query;
    uint16_t *out; float *log_sums; const uint16_t *d_out; uint16_t *d_x; float *parts;
    int failed;
} attention_t;

static inline int64_t padded(int64_t n) { return (n + W - 1) / W * W; }

/* A head's numbers as (length, width) with their bias, if there is one; width is whole vectors. */
static void gather(const uint16_t *from, int64_t step, const float *bias, int64_t length, int64_t width, float *rows) {
    for (int64_t i = 0; i < length; i++)
        for (int64_t e = 0; e < width; e += W) {
            vf x = wide(from + i * step + e);
            store(rows + i * width + e, bias ? x + load(bias + e) : x);
        }
}

/* (length, width) turned to (width, length padded). */
static void turn(const float *rows, int64_t length, int64_t width, float *columns) {
    int64_t size = padded(length);
    for (int64_t i = 0; i < length; i += W) {
        int64_t some = length - i < W ? length - i : W;
        for (int64_t e = 0; e < width; e++)
            for (int64_t k = 0; k < some; k++) columns[e * size + i + k] = rows[(i + k) * width + e];
    }
}

/* out (R, size) = left (R, width) x right (width, size); both of whole vectors. */
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
static inline void spread(const float *left, int64_t left_step, const float *right, int64_t count, int64_t size, float *out) {
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

/* What is added to a query's scores, in whole vectors: what is beyond the length becomes -infinity. */
static const float *bias_row(const attention_t *g, int64_t row, int64_t query, int64_t size, float *line) {
    if (query > 0 && (!g->mask || g->mask_query == 0)) return line; /* as it was for the text's first query */
    if (g->mask) memcpy(line, g->mask + row * g->mask_row + query * g->mask_query, 4 * g->length);
    else memset(line, 0, 4 * g->length);
    for (int64_t j = g->length; j < size; j++) line[j] = -INFINITY;
    return line;
}

static void attention_body(void *pointer) {
    attention_t *g = pointer;
    share_t own = share(g->batch * g->heads);
    int64_t length = g->length, size = padded(length), width = g->width, hidden = g->heads * width;
    int64_t numbers = (size + R) * width + width * size + size * width + R * size + R * width + size;
    float *tables = calloc(numbers, 4);
    if (!tables) { g->failed = 1; return; }
    float *query = tables, *key = query + (size + R) * width, *value = key + width * size;
    float *scores = value + size * width, *found = scores + R * size, *line = found + R * width, factors[R];
    for (int64_t head = own.begin; head < own.end; head++) {
        int64_t row = head / g->heads, first = head % g->heads * g->width;
        const uint16_t *x = g->x + row * length * 3 * hidden + first;
        gather(x, 3 * hidden, g->bias + first, length, width, query);
        gather(x + hidden, 3 * hidden, g->bias + hidden + first, length, width, value);
        turn(value, length, width, key);
        gather(x + 2 * hidden, 3 * hidden, g->bias + 2 * hidden + first, length, width, value);
        for (int64_t i = 0; i < length; i += R) {
            int64_t here = length - i < R ? length - i : R;
            product(query + i * width, width, key, width, size, scores);
            for (int64_t r = 0; r < here; r++) {
                float *own_scores = scores + r * size;
                const float *bias = bias_row(g, row, i + r, size, line);
                vf most = all(-INFINITY), total = {};
                for (int64_t j = 0; j < size; j += W) {
                    vf x = load(own_scores + j) * g->scaling + load(bias + j);
                    most = choose(x > most, x, most);
                    store(own_scores + j, x);
                }
                float top = largest(most);
                uint64_t drawn = row_key(g->drop, head * length + i + r);
                for (int64_t j = 0; j < size; j += W) {
                    vf x = exponential(load(own_scores + j) - top);
                    total += x;
                    store(own_scores + j, g->drop.level ? (vf)((vi)x & kept(g->drop, drawn, j)) : x);
                }
                float all_of = sum(total);
                if (g->log_sums) g->log_sums[head * length + i + r] = top + logf(all_of);
                factors[r] = (g->drop.level ? g->drop.up : 1.0f) / all_of;
            }
            product(scores, size, value, size, width, found);
            for (int64_t r = 0; r < here; r++) {
                uint16_t *out = g->out + (row * length + i + r) * hidden + first;
                for (int64_t e = 0; e < width; e += W) narrow(out + e, load(found + r * width + e) * factors[r]);
            }
        }
    }
    free(tables);
}

/* `mask` is added to the scaled scores; its strides are those of a row and of a query, its keys are contiguous. NULL: none.
 * `log_sums`, for the backward pass, may be NULL. */
int attentune_attention(int64_t batch, int64_t length, int64_t heads, int64_t width, int threads, uint64_t seed,
                        uint32_t level, float up, float scaling, const uint16_t *x, const float *bias, const float *mask,
                        int64_t mask_row, int64_t mask_query, uint16_t *out, float *log_sums) {
    attention_t given = {batch, length, heads, width, {seed, level, up}, scaling, x, bias, mask,
                         mask_row, mask_query, out, log_sums, NULL, NULL, NULL, 0};
    in_parallel(attention_body, &given, threads);
    return given.failed;
}

/* A head's gradient (length, width) to its place in bf16, and its sum to the bias's. */
static void scatter(const float *from, int64_t length, int64_t width, uint16_t *to, int64_t step, float *d_bias) {
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

static void attention_back_body(void *pointer) {
    attention_t *g = pointer;
    share_t own = share(g->batch * g->heads);
    int64_t length = g->length, size = padded(length), width = g->width, hidden = g->heads * width;
    int64_t rows = (size + R) * width, columns = width * size;
    float *tables = calloc(6 * rows + 2 * columns + 3 * R * size + size, 4);
    float *d_bias = g->parts + own.number * 3 * hidden;
    if (!tables) { g->failed = 1; return; }
    float *query = tables, *key = query + rows, *d_found = key + rows;
    float *d_query = d_found + rows, *d_key = d_query + rows, *d_value = d_key + rows;
    float *key_turned = d_value + rows, *value_turned = key_turned + columns;
    float *scores = value_turned + columns, *d_scores = scores + R * size, *used = d_scores + R * size;
    float *line = used + R * size;
    for (int64_t head = own.begin; head < own.end; head++) {
        int64_t row = head / g->heads, first = head % g->heads * g->width;
        const uint16_t *x = g->x + row * length * 3 * hidden + first;
        gather(x, 3 * hidden, g->bias + first, length, width, query);
        gather(x + 2 * hidden, 3 * hidden, g->bias + 2 * hidden + first, length, width, key);
        turn(key, length, width, value_turned);
        gather(x + hidden, 3 * hidden, g->bias + hidden + first, length, width, key);
        turn(key, length, width, key_turned);
        gather(g->d_out + row * length * hidden + first, hidden, NULL, length, width, d_found);
        memset(d_key, 0, 8 * rows); /* and d_value behind it */
        for (int64_t i = 0; i < length; i += R) {
            int64_t here = length - i < R ? length - i : R;
            product(query + i * width, width, key_turned, width, size, scores);
            product(d_found + i * width, width, value_turned, width, size, d_scores);
            for (int64_t r = 0; r < here; r++) {
                float *own_scores = scores + r * size, *own_d = d_scores + r * size, *own_used = used + r * size;
                const float *bias = bias_row(g, row, i + r, size, line);
                float log_sum = g->log_sums[head * length + i + r];
                uint64_t drawn = row_key(g->drop, head * length + i + r);
                vf total = {};
                for (int64_t j = 0; j < size; j += W) {
                    vf score = load(own_scores + j) * g->scaling + load(bias + j);
                    vf probability = exponential(score - log_sum), d = load(own_d + j);
                    vf taken = probability;
                    if (g->drop.level) {
                        vi stays = kept(g->drop, drawn, j);
                        d = (vf)((vi)(d * g->drop.up) & stays);
                        taken = (vf)((vi)(probability * g->drop.up) & stays);
                    }
                    total += probability * d;
                    store(own_scores + j, probability);
                    store(own_used + j, taken);
                    store(own_d + j, d);
                }
                float expected = sum(total); /* not from what was found, which is rounded */
                for (int64_t j = 0; j < size; j += W)
                    store(own_d + j, load(own_scores + j) * (load(own_d + j) - expected) * g->scaling);
            }
            for (int64_t r = here; r < R; r++) { /* queries that are not there */
                memset(d_scores + r * size, 0, 4 * size);
                memset(used + r * size, 0, 4 * size);
            }
            product(d_scores, size, key, size, width, d_query + i * width);
            spread(d_scores, size, query + i * width, length, width, d_key);
            spread(used, size, d_found + i * width, length, width, d_value);
        }
        uint16_t *d_x = g->d_x + row * length * 3 * hidden + first;
        scatter(d_query, length, width, d_x, 3 * hidden, d_bias + first);
        scatter(d_key, length, width, d_x + hidden, 3 * hidden, d_bias + hidden + first);
        scatter(d_value, length, width, d_x + 2 * hidden, 3 * hidden, d_bias + 2 * hidden + first);
    }
    free(tables);
}

int attentune_attention_back(int64_t batch, int64_t length, int64_t heads, int64_t width, int threads, uint64_t seed,
                             uint32_t level, float up, float scaling, const uint16_t *x, const float *bias,
                             const float *mask, int64_t mask_row, int64_t mask_query, const float *log_sums,
                             const uint16_t *d_out, uint16_t *d_x, float *d_bias) {
    float *parts = calloc(threads, 12 * heads * width);
    if (!parts) return 1;
    attention_t given = {batch, length, heads, width, {seed, level, up}, scaling, x, bias, mask, mask_row,
                         mask_query, NULL, (float *)log_sums, d_out, d_x, parts, 0};
    in_parallel(attention_back_body, &given, threads);
    if (!given.failed) add_up(parts, threads, 3 * heads * width, d_bias);
    free(parts);
    return given.failed;
}

/* ---- the squares of many tables, added up ---- */

typedef struct { int64_t tables; const float *const *table; const int64_t *counts; double *parts; } squares_t;

static void squares_body(void *pointer) {
    squares_t g = *(squares_t *)pointer;
    double total = 0;
    int number = thread_number();
    for (int64_t k = 0; k < g.tables; k++) {
        share_t own = share(g.counts[k]);
        int64_t at = own.begin;
        while (at < own.end) { /* float32 within a stretch that is short enough for it */
            int64_t stop = own.end - at < 4096 ? own.end : at + 4096;
            vf some = {};
            for (; at + W <= stop; at += W) some += load(g.table[k] + at) * load(g.table[k] + at);
            float rest = 0;
            for (; at < stop; at++) rest += g.table[k][at] * g.table[k][at];
            total += (double)sum(some) + rest;
        }
    }
    g.parts[8 * number] = total;
}

/* `out` becomes the sum; 1 where there is no memory. */
int attentune_squares(int64_t tables, int threads, const float *const *table, const int64_t *counts, double *out) {
    double *parts = calloc(threads, 64); /* a cache line each */
    if (!parts) return 1;
    squares_t given = {tables, table, counts, parts};
    in_parallel(squares_body, &given, threads);
    *out = 0;
    for (int number = 0; number < threads; number++) *out += parts[8 * number];
    free(parts);
    return 0;
}
