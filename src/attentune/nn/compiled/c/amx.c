/* Attention with Intel AMX, for longer texts, where vector products would dominate the time of a layer.
 *
 * Buffers are padded to multiples of two tiles. Products with the transposed scores (gradients of keys and values) are
 * computed as their own transpose, so that the scores can be the right factor without being transposed themselves.
 */
#include "arena.h"
#include "heads.h"
#include "amx.h"

#ifdef HAS_AMX

#include <sys/syscall.h>
#include <unistd.h>

#define QUERY_BLOCK 128 /* queries whose scores are buffered for the gradients of keys and values */

/* Of arch_prctl: the kernel saves tile state only after this request. */
enum { ARCH_REQ_XCOMP_PERM = 0x1023, XFEATURE_XTILEDATA = 18 };
enum { MIN_TOKENS = 17 }; /* shorter texts fit into one vector, which is faster */
static int allowed;

int attentune_amx(int wanted) {
    allowed = wanted && syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0;
    return allowed;
}

int attentune_amx_fit(const attention_t *g) { return allowed && g->width % S == 0 && g->length >= MIN_TOKENS; }

/* ---- forward ---- */

void attentune_amx_body(void *pointer) {
    attention_t *g = pointer;
    share_t own = attentune_share(g->batch * g->heads);
    int64_t length = g->length, size = padded(length, S), masked_length = padded(length, W); /* columns beyond it stay zero */
    int64_t width = g->width, hidden = g->heads * width;
    arena_t tables = {};
    float *rows, *columns, *scores, *context, *line;
    uint16_t *query, *probabilities;
    uint32_t *key, *value;
    for (int pass = 0; pass < 2; pass++) { /* first pass: count the bytes; second pass: set the pointers */
        rows = arena_take(&tables, 4 * size * width);
        columns = arena_take(&tables, 4 * size * width);
        query = arena_take(&tables, 2 * size * width);
        key = arena_take(&tables, 2 * size * width);
        value = arena_take(&tables, 2 * size * width);
        scores = arena_take(&tables, 4 * S * size);
        probabilities = arena_take(&tables, 2 * S * size);
        context = arena_take(&tables, 4 * S * width);
        line = arena_take(&tables, 4 * size);
        if (!pass && !arena_allocate(&tables)) { g->failed = 1; return; }
    }
    float factors[S];
    tile_config_t before;
    amx_begin(&before);
    for (int64_t head = own.begin; head < own.end; head++) {
        int64_t row = head / g->heads, first = head % g->heads * width;
        const uint16_t *x = g->x + row * length * 3 * hidden + first;
        load_head(x, 3 * hidden, g->bias + first, length, width, rows);
        to_bf16(rows, size * width, query);
        load_head(x + hidden, 3 * hidden, g->bias + hidden + first, length, width, rows);
        transpose(rows, size, width, columns);
        interleave_rows(columns, width, size, key);
        load_head(x + 2 * hidden, 3 * hidden, g->bias + 2 * hidden + first, length, width, rows);
        interleave_rows(rows, size, width, value);
        for (int64_t i = 0; i < length; i += S) {
            int64_t here = length - i < S ? length - i : S;
            amx_product(query + i * width, width, key, size, S, width, size, scores, size, 0);
            for (int64_t r = 0; r < here; r++) {
                const float *bias = bias_row(g, head, i + r, masked_length, line);
                factors[r] = softmax_row(g, head * length + i + r, scores + r * size, bias, masked_length,
                                         probabilities + r * size);
            }
            amx_product(probabilities, size, value, width, S, size, width, context, width, 0);
            store_context(g, row, i, here, first, context, factors);
        }
    }
    amx_end(&before);
    free(tables.memory);
}

/* ---- backward ---- */

typedef struct {
    float *rows, *columns, *scores, *d_scores, *line, *d_query, *d_key, *d_value, *d_position;
    uint16_t *query, *query_transposed, *d_context, *d_context_transposed, *d_scores_bf16;
    uint32_t *key, *key_transposed, *value_transposed, *used, *d_scores_interleaved;
} back_t;

static back_t take_back_buffers(arena_t *tables, int64_t size, int64_t width) {
    int64_t block = size < QUERY_BLOCK ? size : QUERY_BLOCK, numbers = size * width;
    return (back_t){
        .rows = arena_take(tables, 4 * numbers),
        .columns = arena_take(tables, 4 * numbers),
        .scores = arena_take(tables, 4 * S * size),
        .d_scores = arena_take(tables, 4 * S * size),
        .line = arena_take(tables, 8 * size),
        .d_query = arena_take(tables, 4 * numbers),
        .d_key = arena_take(tables, 4 * numbers),
        .d_value = arena_take(tables, 4 * numbers),
        .query = arena_take(tables, 2 * numbers),
        .query_transposed = arena_take(tables, 2 * numbers),
        .d_context = arena_take(tables, 2 * numbers),
        .d_context_transposed = arena_take(tables, 2 * numbers),
        .d_scores_bf16 = arena_take(tables, 2 * S * size),
        .key = arena_take(tables, 2 * numbers),
        .key_transposed = arena_take(tables, 2 * numbers),
        .value_transposed = arena_take(tables, 2 * numbers),
        .used = arena_take(tables, 2 * block * size),
        .d_scores_interleaved = arena_take(tables, 2 * block * size),
    };
}

/* Convert one head's query, key, value and output gradient to the layouts that the products need. */
static void load_head_back(const attention_t *g, int64_t row, int64_t first, int64_t size, back_t t) {
    int64_t length = g->length, width = g->width, hidden = g->heads * width;
    const uint16_t *x = g->x + row * length * 3 * hidden + first;
    load_head(x, 3 * hidden, g->bias + first, length, width, t.rows);
    to_bf16(t.rows, size * width, t.query);
    transpose(t.rows, size, width, t.columns);
    to_bf16(t.columns, size * width, t.query_transposed);
    load_head(x + hidden, 3 * hidden, g->bias + hidden + first, length, width, t.rows);
    interleave_rows(t.rows, size, width, t.key);
    transpose(t.rows, size, width, t.columns);
    interleave_rows(t.columns, width, size, t.key_transposed);
    load_head(x + 2 * hidden, 3 * hidden, g->bias + 2 * hidden + first, length, width, t.rows);
    transpose(t.rows, size, width, t.columns);
    interleave_rows(t.columns, width, size, t.value_transposed);
    load_head(g->d_out + row * length * hidden + first, hidden, NULL, length, width, t.rows);
    to_bf16(t.rows, size * width, t.d_context);
    transpose(t.rows, size, width, t.columns);
    to_bf16(t.columns, size * width, t.d_context_transposed);
}

/* Softmax backward for two queries: from query x key (t.scores) and output gradient x value (t.d_scores), compute the
 * probabilities after dropout and the gradients of the scores. `r` is the first query's index in the block. */
static void softmax_back(const attention_t *g, int64_t head, int64_t i, int64_t r, int64_t size, back_t t, int64_t at) {
    dropout_t dropout = g->dropout;
    int64_t masked_length = padded(g->length, W); /* columns beyond it stay zero */
    uint64_t drawn[2];
    const float *bias[2];
    float scaling = g->scaling, log_sum[2], *scores = t.scores + r * size, *d_scores = t.d_scores + r * size;
    vf total[2] = {};
    for (int k = 0; k < 2; k++) {
        int64_t query = i + r + k, known = query < g->length ? query : g->length - 1;
        drawn[k] = row_key(dropout, head * g->length + query);
        bias[k] = bias_row(g, head, known, masked_length, differs_by_query(g) ? t.line + k * size : t.line);
        log_sum[k] = query < g->length ? g->log_sums[head * g->length + query] : INFINITY; /* makes all probabilities 0 */
    }
    for (int64_t j = 0; j < masked_length; j += W) {
        vf used_part[2];
        for (int k = 0; k < 2; k++) {
            vf score = load(scores + k * size + j) * scaling + load(bias[k] + j);
            probability_t each = probability_step(dropout, drawn[k], j, score, log_sum[k], load(d_scores + k * size + j));
            used_part[k] = each.used_part;
            total[k] += each.probability * each.d;
            store(scores + k * size + j, each.probability);
            store(d_scores + k * size + j, each.d);
        }
        *(vu *)(t.used + at / 2 * size + j) = interleave(used_part[0], used_part[1]);
    }
    float expected[2] = {reduce_sum(total[0]), reduce_sum(total[1])};
    for (int64_t j = 0; j < masked_length; j += W) {
        vf d[2];
        for (int k = 0; k < 2; k++) {
            d[k] = load(scores + k * size + j) * (load(d_scores + k * size + j) - expected[k]) * scaling;
            store(d_scores + k * size + j, d[k]);
            store_bf16(t.d_scores_bf16 + (r + k) * size + j, d[k]);
        }
        *(vu *)(t.d_scores_interleaved + at / 2 * size + j) = interleave(d[0], d[1]);
    }
    for (int k = 0; g->position_bias && k < 2 && i + r + k < g->length; k++) {
        float *d_added = t.d_position + position_offset(g, head, i + r + k), *d = d_scores + k * size;
        for (int64_t j = 0; j < masked_length; j += W) store(d_added + j, load(d_added + j) + load(d + j) * (1.0f / scaling));
    }
}

void attentune_amx_back_body(void *pointer) {
    attention_t *g = pointer;
    share_t own = attentune_share(g->batch * g->heads);
    int64_t length = g->length, size = padded(length, S), width = g->width, hidden = g->heads * width;
    float *d_bias = g->parts + own.number * 3 * hidden;
    arena_t tables = {};
    take_back_buffers(&tables, size, width);
    if (!arena_allocate(&tables)) { g->failed = 1; return; }
    back_t t = take_back_buffers(&tables, size, width);
    t.d_position = g->position_parts + own.number * g->heads * g->position_step;
    tile_config_t before;
    amx_begin(&before);
    for (int64_t head = own.begin; head < own.end; head++) {
        int64_t row = head / g->heads, first = head % g->heads * width;
        load_head_back(g, row, first, size, t);
        for (int64_t from = 0; from < size; from += QUERY_BLOCK) {
            int64_t block = size - from < QUERY_BLOCK ? size - from : QUERY_BLOCK;
            for (int64_t i = from; i < from + block; i += S) {
                amx_product(t.query + i * width, width, t.key_transposed, size, S, width, size, t.scores, size, 0);
                amx_product(t.d_context + i * width, width, t.value_transposed, size, S, width, size, t.d_scores, size, 0);
                int64_t here = length - i < S ? length - i : S; /* rows left from earlier queries are multiplied by zeros */
                for (int64_t r = 0; r < here; r += 2) softmax_back(g, head, i, r, size, t, i - from + r);
                amx_product(t.d_scores_bf16, size, t.key, width, S, size, width, t.d_query + i * width, width, 0);
            }
            amx_product(t.query_transposed + from, size, t.d_scores_interleaved, size, width, block, size, t.d_key, size,
                        from > 0);
            amx_product(t.d_context_transposed + from, size, t.used, size, width, block, size, t.d_value, size, from > 0);
        }
        uint16_t *d_x = g->d_x + row * length * 3 * hidden + first;
        store_gradient(t.d_query, length, width, d_x, 3 * hidden, d_bias + first);
        transpose(t.d_key, width, size, t.columns);
        store_gradient(t.columns, length, width, d_x + hidden, 3 * hidden, d_bias + hidden + first);
        transpose(t.d_value, width, size, t.columns);
        store_gradient(t.columns, length, width, d_x + 2 * hidden, 3 * hidden, d_bias + 2 * hidden + first);
    }
    amx_end(&before);
    free(tables.memory);
}

#else /* compiled without AMX */

int attentune_amx(int wanted) { (void)wanted; return 0; }
int attentune_amx_fit(const attention_t *g) { (void)g; return 0; }
void attentune_amx_body(void *pointer) { (void)pointer; }
void attentune_amx_back_body(void *pointer) { (void)pointer; }

#endif
