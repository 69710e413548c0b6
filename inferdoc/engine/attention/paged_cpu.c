/* Paged attention for a few queries a row, in float32: decodes, and the short verify steps of speculation.
 *
 * Pages are in float32, or in e4m3 with a scale for the keys and one for the values.
 *
 * An item is one query token with the K/V tokens that it sees. K and V are read from their pages, once for all query
 * heads that share a KV head. Only written places are touched: a query sees [first, length) of its row.
 *
 *   query    [tokens, heads, key_dim] by strides   keys    [slots, kv_heads, key_dim]
 *   out      [tokens, heads, value_dim]            values  [slots, kv_heads, value_dim]
 *   tables   [rows, width] blocks                  sinks   [heads] logits without a value, or NULL
 */
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum {
    MANY_ITEMS = 16,
    AHEAD = 8, /* tokens; the processor's own prefetching stops at the end of each 4 KiB page */
    CACHE_LINE = 64 /* bytes */
};

typedef struct {
    int64_t items, width, kv_heads, groups, key_dim, value_dim, block_size;
    int64_t query_head_stride, query_token_stride;
    int64_t longest; /* K/V tokens of the longest item */
    int64_t window;  /* 0: none */
    int64_t e4m3;    /* 0: pages in float32 */
    float scale;     /* of the logits, that of the keys included */
    float value_scale, softcap; /* softcap 0: none */
} Shape;

static int64_t slot(const Shape *shape, const int64_t *table, int64_t token) {
    return table[token / shape->block_size] * shape->block_size + token % shape->block_size;
}

/* Exact: e4m3's numbers are floats with another offset of the exponent, or, below 2^-6, multiples of 2^-9. The result is
 * put together as bits, since the compiler takes for granted that no float is NaN. */
static void decode(const uint8_t *from, int64_t count, float *to) {
    for (int64_t i = 0; i < count; i++) {
        const uint32_t byte = from[i], magnitude = byte & 0x7f;
        const float small = (float)(int32_t)magnitude * 0x1p-9f;
        uint32_t bits;
        memcpy(&bits, &small, sizeof bits);
        bits = magnitude < 8 ? bits : (magnitude << 20) + (120u << 23);
        bits = magnitude == 0x7f ? 0x7fc00000u : bits;
        bits |= (byte & 0x80) << 24;
        memcpy(to + i, &bits, sizeof bits);
    }
}

/* The `count` numbers that stand at `at` in the pages: where they are, or decoded into `space`. The ones at `ahead` are
 * asked for meanwhile, unless that is negative. */
static const float *row(const Shape *shape, const void *pages, int64_t at, int64_t ahead, int64_t count, float *space) {
    const int64_t size = shape->e4m3 ? 1 : sizeof(float);
    const char *bytes = pages;
    if (ahead >= 0)
        for (int64_t i = 0; i < count * size; i += CACHE_LINE) __builtin_prefetch(bytes + ahead * size + i);
    if (!shape->e4m3) return (const float *)pages + at;
    decode((const uint8_t *)pages + at, count, space);
    return space;
}

/* One item, for the KV heads [begin, end): a token's heads stand side by side in memory, and are read so. */
static void attend(const Shape *shape, const float *query, const void *keys, const void *values,
                   const int64_t *table, int64_t length, int64_t begin, int64_t end, const float *sinks, float *out,
                   float *scores, float *space) {
    const int64_t groups = shape->groups, key_dim = shape->key_dim, value_dim = shape->value_dim;
    const int64_t kv_heads = shape->kv_heads, longest = shape->longest;
    const int64_t first = shape->window && length > shape->window ? length - shape->window : 0;
    for (int64_t t = first; t < length; t++) {
        const int64_t at = (slot(shape, table, t) * kv_heads + begin) * key_dim;
        const int64_t ahead = t + AHEAD < length ? (slot(shape, table, t + AHEAD) * kv_heads + begin) * key_dim : -1;
        const float *key = row(shape, keys, at, ahead, (end - begin) * key_dim, space);
        for (int64_t head = begin; head < end; head++, key += key_dim)
            for (int64_t h = head * groups; h < (head + 1) * groups; h++) {
                const float *q = query + h * shape->query_head_stride;
                float sum = 0;
                for (int64_t d = 0; d < key_dim; d++) sum += q[d] * key[d];
                scores[h * longest + t] = sum * shape->scale;
            }
    }
    for (int64_t h = begin * groups; h < end * groups; h++) {
        float *s = scores + h * longest;
        if (shape->softcap > 0)
            for (int64_t t = first; t < length; t++) s[t] = tanhf(s[t] / shape->softcap) * shape->softcap;
        float top = sinks ? sinks[h] : s[first];
        for (int64_t t = first; t < length; t++) top = s[t] > top ? s[t] : top;
        float sum = sinks ? expf(sinks[h] - top) : 0;
        for (int64_t t = first; t < length; t++) sum += s[t] = expf(s[t] - top);
        const float inverse = shape->value_scale / sum;
        for (int64_t t = first; t < length; t++) s[t] *= inverse;
        for (int64_t d = 0; d < value_dim; d++) out[h * value_dim + d] = 0;
    }
    for (int64_t t = first; t < length; t++) {
        const int64_t at = (slot(shape, table, t) * kv_heads + begin) * value_dim;
        const int64_t ahead = t + AHEAD < length ? (slot(shape, table, t + AHEAD) * kv_heads + begin) * value_dim : -1;
        const float *value = row(shape, values, at, ahead, (end - begin) * value_dim, space);
        for (int64_t head = begin; head < end; head++, value += value_dim)
            for (int64_t h = head * groups; h < (head + 1) * groups; h++) {
                const float weight = scores[h * longest + t];
                float *o = out + h * value_dim;
                for (int64_t d = 0; d < value_dim; d++) o[d] += weight * value[d];
            }
    }
}

/* Writes key and value [kv_heads, tokens, dim], by strides, to the tokens' slots. Dimensions and strides in bytes. */
void store(const char *key, const char *value, const int64_t *slots, int64_t tokens, int64_t kv_heads,
           int64_t key_dim, int64_t value_dim, int64_t key_head_stride, int64_t key_token_stride,
           int64_t value_head_stride, int64_t value_token_stride, char *keys, char *values) {
#pragma omp parallel for schedule(static)
    for (int64_t t = 0; t < tokens; t++)
        for (int64_t h = 0; h < kv_heads; h++) {
            memcpy(keys + (slots[t] * kv_heads + h) * key_dim, key + h * key_head_stride + t * key_token_stride,
                   key_dim);
            memcpy(values + (slots[t] * kv_heads + h) * value_dim, value + h * value_head_stride + t * value_token_stride,
                   value_dim);
        }
}

/* Returns 0, or 1 where there is no memory for the scores. */
int paged_attention(const Shape *shape, const float *query, const void *keys, const void *values,
                    const int64_t *tables, const int64_t *tokens, const int64_t *rows, const int64_t *lengths,
                    const float *sinks, float *out) {
    int failed = 0;
    const int64_t kv_heads = shape->kv_heads, heads = kv_heads * shape->groups;
    const int64_t widest = shape->key_dim > shape->value_dim ? shape->key_dim : shape->value_dim;
    /* Few items are shared out by their heads too, so that no thread is idle. */
    const int64_t parts = shape->items < MANY_ITEMS ? kv_heads : 1, each = kv_heads / parts;
#pragma omp parallel
    {
        float *scores = malloc(sizeof(float) * (shape->longest * heads + kv_heads * widest));
        if (!scores) {
#pragma omp atomic write
            failed = 1;
        }
#pragma omp for collapse(2) schedule(static)
        for (int64_t i = 0; i < shape->items; i++)
            for (int64_t part = 0; part < parts; part++)
                if (scores)
                    attend(shape, query + tokens[i] * shape->query_token_stride, keys, values,
                           tables + rows[i] * shape->width, lengths[i], part * each, (part + 1) * each, sinks,
                           out + tokens[i] * heads * shape->value_dim, scores, scores + shape->longest * heads);
        free(scores);
    }
    return failed;
}
