/* Attention by matrix tiles: for texts of some length, where the vectors' products take longer than all else in a layer.
 * The lengths of tables are padded to whole numbers of two tiles.
 *
 * Where a product is of the transpose of scores, the transpose of that product is computed: its right factor is the scores
 * as they lie.
 */
#include "attention.h"
#include "amx.h"

#ifdef HAS_TILES

#include <sys/syscall.h>
#include <unistd.h>

#define MANY 128 /* queries whose scores are kept for the gradients of keys and values */

enum { REQUEST_PERMISSION = 0x1023, TILE_DATA = 18 }; /* of arch_prctl: the kernel saves tiles only for who asked */
enum { FEWEST = 17 }; /* tokens; fewer are one vector, which is faster */
static int allowed;

int attentune_amx(int wanted) {
    allowed = wanted && syscall(SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA) == 0;
    return allowed;
}

int attentune_amx_fit(const attention_t *g) { return allowed && g->width % S == 0 && g->length >= FEWEST; }

/* ---- forward ---- */

void attentune_amx_body(void *pointer) {
    attention_t *g = pointer;
    share_t own = attentune_share(g->batch * g->heads);
    int64_t length = g->length, size = padded(length, S), shown = padded(length, W); /* what is beyond stays zero */
    int64_t width = g->width, hidden = g->heads * width;
    tables_t tables = {};
    float *rows, *columns, *scores, *found, *line;
    uint16_t *query, *probabilities;
    uint32_t *key, *value;
    for (int is_there = 0; is_there < 2; is_there++) { /* counted, then dealt out */
        rows = deal(&tables, 4 * size * width);
        columns = deal(&tables, 4 * size * width);
        query = deal(&tables, 2 * size * width);
        key = deal(&tables, 2 * size * width);
        value = deal(&tables, 2 * size * width);
        scores = deal(&tables, 4 * S * size);
        probabilities = deal(&tables, 2 * S * size);
        found = deal(&tables, 4 * S * width);
        line = deal(&tables, 4 * size);
        if (!is_there && !allot(&tables)) { g->failed = 1; return; }
    }
    float factors[S];
    shape_t before;
    begin(&before);
    for (int64_t head = own.begin; head < own.end; head++) {
        int64_t row = head / g->heads, first = head % g->heads * width;
        const uint16_t *x = g->x + row * length * 3 * hidden + first;
        gather(x, 3 * hidden, g->bias + first, length, width, rows);
        halve(rows, size * width, query);
        gather(x + hidden, 3 * hidden, g->bias + hidden + first, length, width, rows);
        turn(rows, size, width, columns);
        pair_rows(columns, width, size, key);
        gather(x + 2 * hidden, 3 * hidden, g->bias + 2 * hidden + first, length, width, rows);
        pair_rows(rows, size, width, value);
        for (int64_t i = 0; i < length; i += S) {
            int64_t here = length - i < S ? length - i : S;
            tile_product(query + i * width, width, key, size, S, width, size, scores, size, 0);
            for (int64_t r = 0; r < here; r++) {
                const float *bias = bias_row(g, row, i + r, shown, line);
                factors[r] = soften(g, head * length + i + r, scores + r * size, bias, shown, probabilities + r * size);
            }
            tile_product(probabilities, size, value, width, S, size, width, found, width, 0);
            put(g, row, i, here, first, found, factors);
        }
    }
    end(&before);
    free(tables.memory);
}

/* ---- backward ---- */

typedef struct {
    float *rows, *columns, *scores, *d_scores, *line, *d_query, *d_key, *d_value;
    uint16_t *query, *query_turned, *d_found, *d_found_turned, *d_half;
    uint32_t *key, *key_turned, *value_turned, *used, *d_used;
} back_t;

static back_t deal_back(tables_t *tables, int64_t size, int64_t width) {
    int64_t many = size < MANY ? size : MANY, numbers = size * width;
    return (back_t){
        .rows = deal(tables, 4 * numbers), .columns = deal(tables, 4 * numbers), .scores = deal(tables, 4 * S * size),
        .d_scores = deal(tables, 4 * S * size), .line = deal(tables, 8 * size), .d_query = deal(tables, 4 * numbers),
        .d_key = deal(tables, 4 * numbers), .d_value = deal(tables, 4 * numbers), .query = deal(tables, 2 * numbers),
        .query_turned = deal(tables, 2 * numbers), .d_found = deal(tables, 2 * numbers),
        .d_found_turned = deal(tables, 2 * numbers), .d_half = deal(tables, 2 * S * size), .key = deal(tables, 2 * numbers),
        .key_turned = deal(tables, 2 * numbers), .value_turned = deal(tables, 2 * numbers),
        .used = deal(tables, 2 * many * size), .d_used = deal(tables, 2 * many * size),
    };
}

/* The factors of the head's products. */
static void gather_back(const attention_t *g, int64_t row, int64_t first, int64_t size, back_t t) {
    int64_t length = g->length, width = g->width, hidden = g->heads * width;
    const uint16_t *x = g->x + row * length * 3 * hidden + first;
    gather(x, 3 * hidden, g->bias + first, length, width, t.rows);
    halve(t.rows, size * width, t.query);
    turn(t.rows, size, width, t.columns);
    halve(t.columns, size * width, t.query_turned);
    gather(x + hidden, 3 * hidden, g->bias + hidden + first, length, width, t.rows);
    pair_rows(t.rows, size, width, t.key);
    turn(t.rows, size, width, t.columns);
    pair_rows(t.columns, width, size, t.key_turned);
    gather(x + 2 * hidden, 3 * hidden, g->bias + 2 * hidden + first, length, width, t.rows);
    turn(t.rows, size, width, t.columns);
    pair_rows(t.columns, width, size, t.value_turned);
    gather(g->d_out + row * length * hidden + first, hidden, NULL, length, width, t.rows);
    halve(t.rows, size * width, t.d_found);
    turn(t.rows, size, width, t.columns);
    halve(t.columns, size * width, t.d_found_turned);
}

/* Two queries: from their products with keys (in t.scores) and of their gradients with values (in t.d_scores), the
 * probabilities that were used and the gradients of the scores. `r` is the first one's place in the block. */
static void weigh_back(const attention_t *g, int64_t head, int64_t i, int64_t r, int64_t size, back_t t, int64_t at) {
    drop_t drop = g->drop;
    int64_t shown = padded(g->length, W); /* what is beyond stays zero */
    uint64_t drawn[2];
    const float *bias[2];
    float scaling = g->scaling, log_sum[2], *scores = t.scores + r * size, *d_scores = t.d_scores + r * size;
    vf total[2] = {};
    for (int k = 0; k < 2; k++) {
        int64_t query = i + r + k, known = query < g->length ? query : g->length - 1;
        drawn[k] = row_key(drop, head * g->length + query);
        bias[k] = bias_row(g, head / g->heads, known, shown, g->mask && g->mask_query ? t.line + k * size : t.line);
        log_sum[k] = query < g->length ? g->log_sums[head * g->length + query] : INFINITY; /* takes part with nothing */
    }
    for (int64_t j = 0; j < shown; j += W) {
        vf taken[2];
        for (int k = 0; k < 2; k++) {
            vf score = load(scores + k * size + j) * scaling + load(bias[k] + j);
            weighed_t each = weigh(drop, drawn[k], j, score, log_sum[k], load(d_scores + k * size + j));
            taken[k] = each.taken;
            total[k] += each.probability * each.d;
            store(scores + k * size + j, each.probability);
            store(d_scores + k * size + j, each.d);
        }
        *(vu *)(t.used + at / 2 * size + j) = pair(taken[0], taken[1]);
    }
    float expected[2] = {sum(total[0]), sum(total[1])};
    for (int64_t j = 0; j < shown; j += W) {
        vf d[2];
        for (int k = 0; k < 2; k++) {
            d[k] = load(scores + k * size + j) * (load(d_scores + k * size + j) - expected[k]) * scaling;
            narrow(t.d_half + (r + k) * size + j, d[k]);
        }
        *(vu *)(t.d_used + at / 2 * size + j) = pair(d[0], d[1]);
    }
}

void attentune_amx_back_body(void *pointer) {
    attention_t *g = pointer;
    share_t own = attentune_share(g->batch * g->heads);
    int64_t length = g->length, size = padded(length, S), width = g->width, hidden = g->heads * width;
    float *d_bias = g->parts + own.number * 3 * hidden;
    tables_t tables = {};
    deal_back(&tables, size, width);
    if (!allot(&tables)) { g->failed = 1; return; }
    back_t t = deal_back(&tables, size, width);
    shape_t before;
    begin(&before);
    for (int64_t head = own.begin; head < own.end; head++) {
        int64_t row = head / g->heads, first = head % g->heads * width;
        gather_back(g, row, first, size, t);
        for (int64_t from = 0; from < size; from += MANY) {
            int64_t many = size - from < MANY ? size - from : MANY;
            for (int64_t i = from; i < from + many; i += S) {
                tile_product(t.query + i * width, width, t.key_turned, size, S, width, size, t.scores, size, 0);
                tile_product(t.d_found + i * width, width, t.value_turned, size, S, width, size, t.d_scores, size, 0);
                int64_t here = length - i < S ? length - i : S; /* what is left of others is multiplied by zeros */
                for (int64_t r = 0; r < here; r += 2) weigh_back(g, head, i, r, size, t, i - from + r);
                tile_product(t.d_half, size, t.key, width, S, size, width, t.d_query + i * width, width, 0);
            }
            tile_product(t.query_turned + from, size, t.d_used, size, width, many, size, t.d_key, size, from > 0);
            tile_product(t.d_found_turned + from, size, t.used, size, width, many, size, t.d_value, size, from > 0);
        }
        uint16_t *d_x = g->d_x + row * length * 3 * hidden + first;
        scatter(t.d_query, length, width, d_x, 3 * hidden, d_bias + first);
        turn(t.d_key, width, size, t.columns);
        scatter(t.columns, length, width, d_x + hidden, 3 * hidden, d_bias + hidden + first);
        turn(t.d_value, width, size, t.columns);
        scatter(t.columns, length, width, d_x + 2 * hidden, 3 * hidden, d_bias + 2 * hidden + first);
    }
    end(&before);
    free(tables.memory);
}

#else /* no such tiles, or a compiler that does not know them */

int attentune_amx(int wanted) { (void)wanted; return 0; }
int attentune_amx_fit(const attention_t *g) { (void)g; return 0; }
void attentune_amx_body(void *pointer) { (void)pointer; }
void attentune_amx_back_body(void *pointer) { (void)pointer; }

#endif
