/* Disentangled attention: scores also depend on the vectors of relative positions (He et al. 2021, section 3.1).
 *
 * With d = key position - query position, the score of query i and key j is
 *
 *     scaling * (query_i key_j + query_i position_key_d + key_j position_query_d) + mask_j
 *
 * `positions` (2 * length - 1, 2 * heads * width) has position keys and position queries from d = 1 - length on. Blocks of
 * R queries are multiplied by the position keys that they can meet, size + R consecutive ones; keys likewise by position
 * queries, in reversed order, so that a key too meets consecutive ones. Scores of keys are then transposed.
 * Heads are the outer loop, so that a thread prepares a head's position vectors once for all texts.
 */
#include "arena.h"
#include "heads.h"

typedef struct {
    int64_t size, wide, table_rows; /* padded numbers of tokens, of positions that a block meets, and of all positions */
    float *query, *key, *value, *key_transposed, *value_transposed, *d_context, *d_query, *d_key, *d_value; /* one text */
    float *position[2], *position_transposed[2], *d_position[2]; /* one head: keys, and queries reversed */
    float *across, *added, *block, *scores, *d_scores, *used, *line;
} buffers_t;

static float *take(arena_t *arena, int64_t numbers) { return arena_take(arena, 4 * numbers); }

static buffers_t take_buffers(arena_t *arena, const attention_t *g, int is_back) {
    int64_t width = g->width, size = padded(g->length, W), wide = padded(size + R, W), back = is_back;
    int64_t table_rows = padded(g->length + wide + W, W), rows = (size + R) * width;
    buffers_t b = {.size = size, .wide = wide, .table_rows = table_rows};
    b.query = take(arena, rows);
    b.key = take(arena, rows);
    b.value = take(arena, rows);
    b.key_transposed = take(arena, rows);
    b.value_transposed = take(arena, back * rows);
    b.d_context = take(arena, back * rows);
    b.d_query = take(arena, back * rows);
    b.d_key = take(arena, back * rows);
    b.d_value = take(arena, back * rows);
    for (int side = 0; side < 2; side++) {
        b.position[side] = take(arena, table_rows * width);
        b.position_transposed[side] = take(arena, table_rows * width);
        b.d_position[side] = take(arena, back * table_rows * width);
    }
    b.across = take(arena, (size + R) * size);
    b.added = take(arena, (size + R) * size);
    b.block = take(arena, R * (wide > width ? wide : width));
    b.scores = take(arena, R * (wide > width ? wide : width));
    b.d_scores = take(arena, back * R * size);
    b.used = take(arena, back * R * size);
    b.line = take(arena, size);
    return b;
}

/* The first of the positions that the block of R tokens from the i-th on meets; tables begin with R rows of zeros. */
static inline int64_t first_position(const attention_t *g, int64_t i) { return g->length - i; }

/* Load a head's position vectors. */
static void load_positions(const attention_t *g, int64_t head, buffers_t b) {
    int64_t width = g->width, hidden = g->heads * width, count = 2 * g->length - 1;
    for (int64_t r = 0; r < count; r++) {
        const uint16_t *from = g->positions + r * 2 * hidden + head * width;
        load_head(from, 0, NULL, 1, width, b.position[0] + (R + r) * width);
        load_head(from + hidden, 0, NULL, 1, width, b.position[1] + (R + count - 1 - r) * width);
    }
    for (int side = 0; side < 2; side++) transpose(b.position[side], b.table_rows, width, b.position_transposed[side]);
}

/* Scores of R tokens, from the i-th on, with the positions of all tokens: added to `scores`, R rows. */
static void add_position_scores(const attention_t *g, int side, const float *rows, int64_t i, buffers_t b, float *scores) {
    const float *table = b.position_transposed[side] + first_position(g, i);
    for (int64_t j = 0; j < b.wide; j += W) {
        vf total[R] = {};
        for (int64_t e = 0; e < g->width; e++) {
            vf other = load(table + e * b.table_rows + j);
            for (int r = 0; r < R; r++) total[r] += rows[r * g->width + e] * other;
        }
        for (int r = 0; r < R; r++) store(b.block + r * b.wide + j, total[r]);
    }
    for (int64_t r = 0; r < R; r++)
        for (int64_t j = 0; j < b.size; j += W) {
            float *to = scores + r * b.size + j;
            store(to, load(to) + load(b.block + r * b.wide + R - 1 - r + j));
        }
}

/* Backward pass of `add_position_scores`: gradients of the tokens, added to `d_rows`, and of the positions. */
static void position_scores_back(const attention_t *g, int side, const float *rows, int64_t i, const float *d_scores,
                                 buffers_t b, float *d_rows) {
    int64_t width = g->width, first = first_position(g, i);
    memset(b.block, 0, 4 * R * b.wide);
    for (int64_t r = 0; r < R; r++) memcpy(b.block + r * b.wide + R - 1 - r, d_scores + r * b.size, 4 * b.size);
    product(b.block, b.wide, b.position[side] + first * width, b.wide, width, b.scores);
    for (int64_t at = 0; at < R * width; at += W) store(d_rows + at, load(d_rows + at) + load(b.scores + at));
    add_outer_products(b.block, b.wide, rows, b.size + R, width, b.d_position[side] + first * width);
}

/* Load one text's head; then scores of keys with position queries, transposed: `added` (queries, keys). */
static void load_text(const attention_t *g, int64_t row, int64_t head, buffers_t b) {
    int64_t width = g->width, hidden = g->heads * width, first = head * width;
    const uint16_t *x = g->x + row * g->length * 3 * hidden + first;
    load_head(x, 3 * hidden, g->bias + first, g->length, width, b.query);
    load_head(x + hidden, 3 * hidden, g->bias + hidden + first, g->length, width, b.key);
    load_head(x + 2 * hidden, 3 * hidden, g->bias + 2 * hidden + first, g->length, width, b.value);
    transpose(b.key, b.size, width, b.key_transposed);
    memset(b.across, 0, 4 * b.size * b.size);
    for (int64_t j = 0; j < g->length; j += R) add_position_scores(g, 1, b.key + j * width, j, b, b.across + j * b.size);
    transpose(b.across, b.size, b.size, b.added);
}

/* Unscaled scores of the R queries from the i-th on. */
static void score_block(const attention_t *g, int64_t i, buffers_t b) {
    product(b.query + i * g->width, g->width, b.key_transposed, g->width, b.size, b.scores);
    add_position_scores(g, 0, b.query + i * g->width, i, b, b.scores);
    for (int64_t at = 0; at < R * b.size; at += W) store(b.scores + at, load(b.scores + at) + load(b.added + i * b.size + at));
}

static void disentangled_body(void *pointer) {
    attention_t *g = pointer;
    share_t own = attentune_share(g->batch * g->heads);
    arena_t arena = {};
    take_buffers(&arena, g, 0);
    if (!arena_allocate(&arena)) { g->failed = 1; return; }
    buffers_t b = take_buffers(&arena, g, 0);
    float factors[R];
    for (int64_t at = own.begin; at < own.end; at++) {
        int64_t head = at / g->batch, row = at % g->batch, number = row * g->heads + head;
        if (at == own.begin || row == 0) load_positions(g, head, b);
        load_text(g, row, head, b);
        for (int64_t i = 0; i < g->length; i += R) {
            int64_t here = g->length - i < R ? g->length - i : R;
            score_block(g, i, b);
            for (int64_t r = 0; r < here; r++) {
                const float *bias = bias_row(g, number, i + r, b.size, b.line);
                factors[r] = softmax_row(g, number * g->length + i + r, b.scores + r * b.size, bias, b.size, NULL);
            }
            product(b.scores, b.size, b.value, b.size, g->width, b.block);
            store_context(g, row, i, here, head * g->width, b.block, factors);
        }
    }
    free(arena.memory);
}

/* As attentune_attention, with `positions` as above in the place of a position bias. */
int attentune_disentangled(int64_t batch, int64_t length, int64_t heads, int64_t width, int threads, uint64_t seed,
                           uint32_t threshold, float scale_kept, float scaling, const uint16_t *x, const float *bias,
                           const float *mask, int64_t mask_row, int64_t mask_query, const uint16_t *positions, uint16_t *out,
                           float *log_sums) {
    attention_t given = {.batch = batch, .length = length, .heads = heads, .width = width,
                         .dropout = {seed, threshold, scale_kept}, .scaling = scaling, .x = x, .bias = bias, .mask = mask,
                         .mask_row = mask_row, .mask_query = mask_query, .positions = positions, .out = out,
                         .log_sums = log_sums};
    attentune_in_parallel(disentangled_body, &given, threads);
    return given.failed;
}

/* Softmax backward of R queries from the i-th on: gradients of the unscaled scores, and probabilities after dropout. */
static void softmax_back(const attention_t *g, int64_t number, int64_t i, buffers_t b) {
    int64_t here = g->length - i < R ? g->length - i : R;
    for (int64_t r = 0; r < here; r++) {
        float *scores = b.scores + r * b.size, *d_scores = b.d_scores + r * b.size, *used = b.used + r * b.size;
        const float *bias = bias_row(g, number, i + r, b.size, b.line);
        float log_sum = g->log_sums[number * g->length + i + r];
        uint64_t drawn = row_key(g->dropout, number * g->length + i + r);
        vf total = {};
        for (int64_t j = 0; j < b.size; j += W) {
            vf score = load(scores + j) * g->scaling + load(bias + j);
            probability_t each = probability_step(g->dropout, drawn, j, score, log_sum, load(d_scores + j));
            total += each.probability * each.d;
            store(scores + j, each.probability);
            store(used + j, each.used_part);
            store(d_scores + j, each.d);
        }
        float expected = reduce_sum(total);
        for (int64_t j = 0; j < b.size; j += W)
            store(d_scores + j, load(scores + j) * (load(d_scores + j) - expected) * g->scaling);
    }
    memset(b.d_scores + here * b.size, 0, 4 * (R - here) * b.size); /* padding queries */
    memset(b.used + here * b.size, 0, 4 * (R - here) * b.size);
}

/* Add a head's gradients of position vectors to the thread's sums, and clear them. */
static void flush_positions(const attention_t *g, int64_t head, buffers_t b, float *parts) {
    int64_t width = g->width, hidden = g->heads * width, count = 2 * g->length - 1;
    for (int64_t r = 0; r < count; r++)
        for (int64_t e = 0; e < width; e += W) {
            float *to = parts + r * 2 * hidden + head * width + e;
            store(to, load(to) + load(b.d_position[0] + (R + r) * width + e));
            store(to + hidden, load(to + hidden) + load(b.d_position[1] + (R + count - 1 - r) * width + e));
        }
    for (int side = 0; side < 2; side++) memset(b.d_position[side], 0, 4 * b.table_rows * width);
}

static void disentangled_back_body(void *pointer) {
    attention_t *g = pointer;
    share_t own = attentune_share(g->batch * g->heads);
    int64_t length = g->length, width = g->width, hidden = g->heads * width;
    float *d_bias = g->parts + own.number * 3 * hidden;
    float *position_parts = g->position_parts + own.number * (2 * length - 1) * 2 * hidden;
    arena_t arena = {};
    take_buffers(&arena, g, 1);
    if (!arena_allocate(&arena)) { g->failed = 1; return; }
    buffers_t b = take_buffers(&arena, g, 1);
    for (int64_t at = own.begin; at < own.end; at++) {
        int64_t head = at / g->batch, row = at % g->batch, number = row * g->heads + head, first = head * width;
        if (at == own.begin || row == 0) load_positions(g, head, b);
        load_text(g, row, head, b);
        transpose(b.value, b.size, width, b.value_transposed);
        load_head(g->d_out + row * length * hidden + first, hidden, NULL, length, width, b.d_context);
        memset(b.d_key, 0, 4 * (b.size + R) * width);
        memset(b.d_value, 0, 4 * (b.size + R) * width);
        for (int64_t i = 0; i < length; i += R) {
            score_block(g, i, b);
            product(b.d_context + i * width, width, b.value_transposed, width, b.size, b.d_scores);
            softmax_back(g, number, i, b);
            memcpy(b.across + i * b.size, b.d_scores, 4 * R * b.size);
            product(b.d_scores, b.size, b.key, b.size, width, b.d_query + i * width);
            add_outer_products(b.d_scores, b.size, b.query + i * width, length, width, b.d_key);
            add_outer_products(b.used, b.size, b.d_context + i * width, length, width, b.d_value);
            position_scores_back(g, 0, b.query + i * width, i, b.d_scores, b, b.d_query + i * width);
        }
        memset(b.across + padded(length, R) * b.size, 0, 4 * (b.size - padded(length, R)) * b.size);
        transpose(b.across, b.size, b.size, b.added);
        for (int64_t j = 0; j < length; j += R)
            position_scores_back(g, 1, b.key + j * width, j, b.added + j * b.size, b, b.d_key + j * width);
        uint16_t *d_x = g->d_x + row * length * 3 * hidden + first;
        store_gradient(b.d_query, length, width, d_x, 3 * hidden, d_bias + first);
        store_gradient(b.d_key, length, width, d_x + hidden, 3 * hidden, d_bias + hidden + first);
        store_gradient(b.d_value, length, width, d_x + 2 * hidden, 3 * hidden, d_bias + 2 * hidden + first);
        if (at + 1 == own.end || row + 1 == g->batch) flush_positions(g, head, b, position_parts);
    }
    free(arena.memory);
}

int attentune_disentangled_back(int64_t batch, int64_t length, int64_t heads, int64_t width, int threads, uint64_t seed,
                                uint32_t threshold, float scale_kept, float scaling, const uint16_t *x, const float *bias,
                                const float *mask, int64_t mask_row, int64_t mask_query, const uint16_t *positions,
                                const float *log_sums, const uint16_t *d_out, uint16_t *d_x, float *d_bias,
                                float *d_positions) {
    int64_t columns = 3 * heads * width, numbers = (2 * length - 1) * 2 * heads * width;
    float *parts = calloc(threads, 4 * (columns + numbers));
    if (!parts) return 1;
    attention_t given = {.batch = batch, .length = length, .heads = heads, .width = width,
                         .dropout = {seed, threshold, scale_kept}, .scaling = scaling, .x = x, .bias = bias, .mask = mask,
                         .mask_row = mask_row, .mask_query = mask_query, .positions = positions,
                         .log_sums = (float *)log_sums, .d_out = d_out, .d_x = d_x, .parts = parts,
                         .position_parts = parts + threads * columns};
    attentune_in_parallel(disentangled_back_body, &given, threads);
    if (!given.failed) {
        attentune_add_up(parts, threads, columns, d_bias);
        attentune_add_up(given.position_parts, threads, numbers, d_positions);
    }
    free(parts);
    return given.failed;
}
