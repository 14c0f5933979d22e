/* Attention with float32 vectors. Queries are processed in blocks of R whose scores stay in the cache; the matrix of
 * probabilities is never stored (the backward pass recomputes it from the saved log sums).
 */
#include "heads.h"

static void attention_body(void *pointer) {
    attention_t *g = pointer;
    share_t own = attentune_share(g->batch * g->heads);
    int64_t length = g->length, size = padded(length, W), width = g->width, hidden = g->heads * width;
    int64_t numbers = (size + R) * width + width * size + size * width + R * size + R * width + size;
    float *tables = calloc(numbers, 4);
    if (!tables) { g->failed = 1; return; }
    float *query = tables, *key = query + (size + R) * width, *value = key + width * size;
    float *scores = value + size * width, *context = scores + R * size, *line = context + R * width, factors[R];
    for (int64_t head = own.begin; head < own.end; head++) {
        int64_t row = head / g->heads, first = head % g->heads * g->width;
        const uint16_t *x = g->x + row * length * 3 * hidden + first;
        load_head(x, 3 * hidden, g->bias + first, length, width, query);
        load_head(x + hidden, 3 * hidden, g->bias + hidden + first, length, width, value);
        transpose(value, size, width, key);
        load_head(x + 2 * hidden, 3 * hidden, g->bias + 2 * hidden + first, length, width, value);
        for (int64_t i = 0; i < length; i += R) {
            int64_t here = length - i < R ? length - i : R;
            product(query + i * width, width, key, width, size, scores);
            for (int64_t r = 0; r < here; r++) {
                const float *bias = bias_row(g, head, i + r, size, line);
                factors[r] = softmax_row(g, head * length + i + r, scores + r * size, bias, size, NULL);
            }
            product(scores, size, value, size, width, context);
            store_context(g, row, i, here, first, context, factors);
        }
    }
    free(tables);
}

/* `mask` is added to the scaled scores; mask_row and mask_query are its strides over texts and queries, keys are
 * contiguous; NULL for none. So is `position_bias` (heads, position_step), whose element length - 1 + d of a head belongs to
 * keys d positions after the query; position_step is at least 2 * length - 1 + W. `log_sums` is for the backward pass and may
 * be NULL. Returns 1 if memory is short. */
int attentune_attention(int64_t batch, int64_t length, int64_t heads, int64_t width, int threads, uint64_t seed,
                        uint32_t threshold, float scale_kept, float scaling, const uint16_t *x, const float *bias,
                        const float *mask, int64_t mask_row, int64_t mask_query, const float *position_bias,
                        int64_t position_step, uint16_t *out, float *log_sums) {
    attention_t given = {.batch = batch, .length = length, .heads = heads, .width = width,
                         .dropout = {seed, threshold, scale_kept}, .scaling = scaling, .x = x, .bias = bias, .mask = mask,
                         .mask_row = mask_row, .mask_query = mask_query, .position_bias = position_bias,
                         .position_step = position_step, .out = out, .log_sums = log_sums};
    attentune_in_parallel(attentune_amx_fit(&given) ? attentune_amx_body : attention_body, &given, threads);
    return given.failed;
}

static void attention_back_body(void *pointer) {
    attention_t *g = pointer;
    share_t own = attentune_share(g->batch * g->heads);
    int64_t length = g->length, size = padded(length, W), width = g->width, hidden = g->heads * width;
    int64_t rows = (size + R) * width, columns = width * size;
    float *tables = calloc(6 * rows + 2 * columns + 3 * R * size + size, 4);
    float *d_bias = g->parts + own.number * 3 * hidden, unscaled = 1.0f / g->scaling;
    float *d_position = g->position_parts + own.number * g->heads * g->position_step;
    if (!tables) { g->failed = 1; return; }
    float *query = tables, *key = query + rows, *d_context = key + rows;
    float *d_query = d_context + rows, *d_key = d_query + rows, *d_value = d_key + rows;
    float *key_transposed = d_value + rows, *value_transposed = key_transposed + columns;
    float *scores = value_transposed + columns, *d_scores = scores + R * size, *used = d_scores + R * size;
    float *line = used + R * size;
    for (int64_t head = own.begin; head < own.end; head++) {
        int64_t row = head / g->heads, first = head % g->heads * g->width;
        const uint16_t *x = g->x + row * length * 3 * hidden + first;
        load_head(x, 3 * hidden, g->bias + first, length, width, query);
        load_head(x + 2 * hidden, 3 * hidden, g->bias + 2 * hidden + first, length, width, key);
        transpose(key, size, width, value_transposed);
        load_head(x + hidden, 3 * hidden, g->bias + hidden + first, length, width, key);
        transpose(key, size, width, key_transposed);
        load_head(g->d_out + row * length * hidden + first, hidden, NULL, length, width, d_context);
        memset(d_key, 0, 8 * rows); /* d_value follows d_key in memory */
        for (int64_t i = 0; i < length; i += R) {
            int64_t here = length - i < R ? length - i : R;
            product(query + i * width, width, key_transposed, width, size, scores);
            product(d_context + i * width, width, value_transposed, width, size, d_scores);
            for (int64_t r = 0; r < here; r++) {
                float *own_scores = scores + r * size, *own_d = d_scores + r * size, *own_used = used + r * size;
                const float *bias = bias_row(g, head, i + r, size, line);
                float log_sum = g->log_sums[head * length + i + r];
                uint64_t drawn = row_key(g->dropout, head * length + i + r);
                vf total = {};
                for (int64_t j = 0; j < size; j += W) {
                    vf score = load(own_scores + j) * g->scaling + load(bias + j);
                    probability_t each = probability_step(g->dropout, drawn, j, score, log_sum, load(own_d + j));
                    total += each.probability * each.d;
                    store(own_scores + j, each.probability);
                    store(own_used + j, each.used_part);
                    store(own_d + j, each.d);
                }
                float expected = reduce_sum(total); /* computed here, since the stored context is rounded to bf16 */
                for (int64_t j = 0; j < size; j += W)
                    store(own_d + j, load(own_scores + j) * (load(own_d + j) - expected) * g->scaling);
                if (!g->position_bias) continue;
                float *d_added = d_position + position_offset(g, head, i + r);
                for (int64_t j = 0; j < length; j++) d_added[j] += own_d[j] * unscaled;
            }
            for (int64_t r = here; r < R; r++) { /* padding queries */
                memset(d_scores + r * size, 0, 4 * size);
                memset(used + r * size, 0, 4 * size);
            }
            product(d_scores, size, key, size, width, d_query + i * width);
            add_outer_products(d_scores, size, query + i * width, length, width, d_key);
            add_outer_products(used, size, d_context + i * width, length, width, d_value);
        }
        uint16_t *d_x = g->d_x + row * length * 3 * hidden + first;
        store_gradient(d_query, length, width, d_x, 3 * hidden, d_bias + first);
        store_gradient(d_key, length, width, d_x + hidden, 3 * hidden, d_bias + hidden + first);
        store_gradient(d_value, length, width, d_x + 2 * hidden, 3 * hidden, d_bias + 2 * hidden + first);
    }
    free(tables);
}

int attentune_attention_back(int64_t batch, int64_t length, int64_t heads, int64_t width, int threads, uint64_t seed,
                             uint32_t threshold, float scale_kept, float scaling, const uint16_t *x, const float *bias,
                             const float *mask, int64_t mask_row, int64_t mask_query, const float *position_bias,
                             int64_t position_step, const float *log_sums, const uint16_t *d_out, uint16_t *d_x, float *d_bias,
                             float *d_position_bias) {
    int64_t columns = 3 * heads * width, positions = heads * position_step;
    float *parts = calloc(threads, 4 * (columns + positions));
    if (!parts) return 1;
    attention_t given = {.batch = batch, .length = length, .heads = heads, .width = width,
                         .dropout = {seed, threshold, scale_kept}, .scaling = scaling, .x = x, .bias = bias, .mask = mask,
                         .mask_row = mask_row, .mask_query = mask_query, .position_bias = position_bias,
                         .position_step = position_step, .log_sums = (float *)log_sums, .d_out = d_out, .d_x = d_x,
                         .parts = parts, .position_parts = parts + threads * columns};
    attentune_in_parallel(attentune_amx_fit(&given) ? attentune_amx_back_body : attention_back_body, &given, threads);
    if (!given.failed) {
        attentune_add_up(parts, threads, columns, d_bias);
        if (position_bias) attentune_add_up(given.position_parts, threads, positions, d_position_bias);
    }
    free(parts);
    return given.failed;
}
