/* Paged attention: KV blocks, their writing, and the attention of a few query rows over one KV head.
 *
 * A query row is reduced in one order, whoever computes it and with how many neighbours: positions
 * are cut into splits of EW_SPLIT at fixed multiples; inside a split the maximum is taken first, then
 * weights are summed lane by lane and values in order of position; splits are merged in order.
 * Positions that a row may not see have the weight 0, which leaves every sum as it is.
 *
 * One KV head of one layer in a block of EW_BLOCK positions, by EW_KV:
 *   EW_KV_F32   keys [d][EW_BLOCK] floats, values [EW_BLOCK][dv] floats
 *   EW_KV_BF16  the same in bf16
 *   EW_KV_INT8  keys, rotated, [d / 4][EW_BLOCK][4] bytes + EW_OFFSET, a float scale a position,
 *               values [EW_BLOCK / 4][dv][4] bytes, a float scale a position
 * with d = EW_HEAD_DIM padded to a multiple of 4 and dv = EW_HEAD_DIM padded to whole vectors.
 */
#ifndef EW_ATTENTION_H
#define EW_ATTENTION_H

#include "rows.h"

#define EW_BLOCK 32
#define EW_SPLIT 512
#define EW_KV_F32 0
#define EW_KV_BF16 1
#define EW_KV_INT8 2
#define EW_KEY_DIM ((EW_HEAD_DIM + 3) / 4 * 4)
#define EW_WEIGHED (EW_KV == EW_KV_INT8 ? 2 : 4) /* vectors of values at a time */
#define EW_VALUE_DIM ((EW_HEAD_DIM + EW_LANES - 1) / EW_LANES * EW_LANES)
#if EW_KV == EW_KV_INT8
#define EW_KEY_BYTES (EW_KEY_DIM * EW_BLOCK + EW_BLOCK * 4)
#define EW_VALUE_BYTES (EW_BLOCK * EW_VALUE_DIM + EW_BLOCK * 4)
#elif EW_KV == EW_KV_BF16
#define EW_KEY_BYTES (EW_HEAD_DIM * EW_BLOCK * 2)
#define EW_VALUE_BYTES (EW_BLOCK * EW_VALUE_DIM * 2)
#else
#define EW_KEY_BYTES (EW_HEAD_DIM * EW_BLOCK * 4)
#define EW_VALUE_BYTES (EW_BLOCK * EW_VALUE_DIM * 4)
#endif
#define EW_KV_HEAD_BYTES ((EW_KEY_BYTES + EW_VALUE_BYTES + 63) / 64 * 64)
#define EW_HEAD_ROUND ((EW_HEAD_DIM + EW_ROTATED - 1) / EW_ROTATED * EW_ROTATED)
/* Elements of a head that are rotated together: the largest power of two, at most EW_ROTATED, that divides it. */
#define EW_HEAD_TURN ((EW_HEAD_DIM & -EW_HEAD_DIM) < EW_ROTATED ? (EW_HEAD_DIM & -EW_HEAD_DIM) : EW_ROTATED)
#define EW_HEAVIEST (EW_OFFSET ? 255.0f : 127.0f) /* a weight of 8 bits; the first factor of vi_dot is signed without VNNI */
#define EW_QUERIES ((EW_HEADS / EW_KV_HEADS)) /* query heads that share a KV head */
#define EW_ITEM_TOKENS (24 / EW_QUERIES > 0 ? 24 / EW_QUERIES : 1)
#define EW_ITEM_ROWS (EW_ITEM_TOKENS * EW_QUERIES)

typedef struct {
    float scores[EW_ITEM_ROWS][EW_SPLIT] EW_ALIGNED;
    float split[EW_ITEM_ROWS][EW_VALUE_DIM] EW_ALIGNED;
    float sum[EW_ITEM_ROWS][EW_VALUE_DIM] EW_ALIGNED;
    float score_scale[EW_ITEM_ROWS]; /* takes a score to an exponent of 2; never 0 */
    float high[EW_ITEM_ROWS], weight[EW_ITEM_ROWS]; /* running maximum and sum of weights */
    uint8_t seen[EW_ITEM_ROWS];
    const uint8_t *heads[EW_SPLIT / EW_BLOCK]; /* the split's blocks */
#if EW_KV == EW_KV_INT8
    int8_t query8[EW_ITEM_ROWS][EW_HEAD_ROUND] EW_ALIGNED;
    int32_t offset[EW_ITEM_ROWS];
    uint8_t weights[EW_ITEM_ROWS][EW_SPLIT] EW_ALIGNED; /* times the values' scales, in units of the block */
    float unit[EW_ITEM_ROWS][EW_SPLIT / EW_BLOCK];
#else
    float query[EW_ITEM_ROWS][EW_KEY_DIM] EW_ALIGNED;
#endif
} ew_attention_scratch;

EW_INLINE uint8_t *ew_kv_head(uint8_t *pool, size_t block_bytes, int block, int layer, int head) {
    return pool + (size_t)block * block_bytes + (size_t)(layer * EW_KV_HEADS + head) * EW_KV_HEAD_BYTES;
}

#if EW_KV == EW_KV_INT8
/* int8 by one scale for the whole vector, with zeros behind it; returns the scale. Runs of `turn` are rotated
 * first, unscaled. A vector that is not finite gets a scale of NaN. */
EW_INLINE float ew_quantize_head(const int turn, const float *x, int8_t *q, int32_t *sum) {
    float padded[EW_HEAD_ROUND] EW_ALIGNED;
    vf v[EW_HEAD_ROUND / EW_LANES];
    memcpy(padded, x, EW_HEAD_DIM * 4);
    memset(padded + EW_HEAD_DIM, 0, (EW_HEAD_ROUND - EW_HEAD_DIM) * 4);
    EW_UNROLL
    for (int i = 0; i < EW_HEAD_ROUND / EW_LANES; i++) v[i] = vf_load(padded + i * EW_LANES);
    if (turn > 1)
        for (int i = 0; i < EW_HEAD_ROUND / EW_LANES; i += EW_ROTATED / EW_LANES) ew_hadamard(v + i, turn);
    float broken;
    const float high = ew_round_int8(EW_HEAD_ROUND / EW_LANES, v, q, sum, &broken);
    return high / 127.0f + broken;
}
#endif

EW_INLINE void ew_kv_write_head(uint8_t *head, int slot, const float *key, const float *value) {
#if EW_KV == EW_KV_INT8
    int8_t q[EW_HEAD_ROUND] EW_ALIGNED;
    int32_t sum; /* of use for queries alone */
    uint8_t *values = head + EW_KEY_BYTES, *row = values + (size_t)(slot / 4) * EW_VALUE_DIM * 4 + slot % 4;
    ((float *)(head + EW_KEY_DIM * EW_BLOCK))[slot] = ew_quantize_head(EW_HEAD_TURN, key, q, &sum);
    for (int i = 0; i < EW_KEY_DIM; i += 4) {
        uint32_t four;
        memcpy(&four, q + i, 4);
        if (EW_OFFSET) four ^= 0x80808080u;
        memcpy(head + (size_t)i * EW_BLOCK + slot * 4, &four, 4);
    }
    ((float *)(values + EW_BLOCK * EW_VALUE_DIM))[slot] = ew_quantize_head(1, value, q, &sum);
    for (int i = 0; i < EW_VALUE_DIM; i++) row[i * 4] = (uint8_t)q[i];
#elif EW_KV == EW_KV_BF16
    uint16_t *keys = (uint16_t *)head, *row = (uint16_t *)(head + EW_KEY_BYTES) + (size_t)slot * EW_VALUE_DIM;
    memset(row, 0, EW_VALUE_DIM * 2);
    for (int i = 0; i < EW_HEAD_DIM; i++) {
        keys[i * EW_BLOCK + slot] = ew_f32_to_bf16(key[i]);
        row[i] = ew_f32_to_bf16(value[i]);
    }
#else
    float *keys = (float *)head, *row = (float *)(head + EW_KEY_BYTES) + (size_t)slot * EW_VALUE_DIM;
    memset(row, 0, EW_VALUE_DIM * 4);
    for (int i = 0; i < EW_HEAD_DIM; i++) {
        keys[i * EW_BLOCK + slot] = key[i];
        row[i] = value[i];
    }
#endif
}

/* Scores of `rows` queries against two vectors of positions of one block, from position `c` of it.
 * Where the cache is float, the scale of the scores and log2(e) are already in the query. */
EW_INLINE void ew_scores(const int rows, const ew_attention_scratch *z, int row, const uint8_t *head, int c, float (*out)[EW_SPLIT], int at) {
#if EW_KV == EW_KV_INT8
    vi acc[EW_ATTENTION_ROWS][2];
    EW_UNROLL
    for (int r = 0; r < rows; r++) acc[r][0] = acc[r][1] = vi_set1(z->offset[row + r]);
    for (int i = 0; i < EW_KEY_DIM; i += 4) {
        const uint8_t *k = head + (size_t)i * EW_BLOCK + c * 4;
        vb k0 = vb_load(k), k1 = vb_load(k + EW_LANES * 4);
        EW_UNROLL
        for (int r = 0; r < rows; r++) {
            vb q = vb_set1(z->query8[row + r] + i);
            acc[r][0] = vi_dot(acc[r][0], k0, q);
            acc[r][1] = vi_dot(acc[r][1], k1, q);
        }
    }
    const float *scales = (const float *)(head + EW_KEY_DIM * EW_BLOCK) + c;
    vf s0 = vf_load(scales), s1 = vf_load(scales + EW_LANES);
    EW_UNROLL
    for (int r = 0; r < rows; r++) {
        vf_store(out[row + r] + at + c, vf_from_vi(acc[r][0]) * s0);
        vf_store(out[row + r] + at + c + EW_LANES, vf_from_vi(acc[r][1]) * s1);
    }
#else
    vf acc[EW_ATTENTION_ROWS][2];
    EW_UNROLL
    for (int r = 0; r < rows; r++) acc[r][0] = acc[r][1] = vf_zero();
    for (int i = 0; i < EW_HEAD_DIM; i++) {
#if EW_KV == EW_KV_BF16
        const uint16_t *k = (const uint16_t *)head + i * EW_BLOCK + c;
        vf k0 = vf_from_bf16(k), k1 = vf_from_bf16(k + EW_LANES);
#else
        const float *k = (const float *)head + i * EW_BLOCK + c;
        vf k0 = vf_load(k), k1 = vf_load(k + EW_LANES);
#endif
        EW_UNROLL
        for (int r = 0; r < rows; r++) {
            vf q = vf_set1(z->query[row + r][i]);
            acc[r][0] = vf_fma(q, k0, acc[r][0]);
            acc[r][1] = vf_fma(q, k1, acc[r][1]);
        }
    }
    EW_UNROLL
    for (int r = 0; r < rows; r++) {
        vf_store(out[row + r] + at + c, acc[r][0]);
        vf_store(out[row + r] + at + c + EW_LANES, acc[r][1]);
    }
#endif
}

/* Values of the positions [skip * EW_BLOCK, visible) of a split, weighted and added up: `vectors` vectors from
 * `column` of `rows` rows. int8 values are multiplied by 8-bit weights: a block's sum is exact in integers, and
 * blocks are added in order. A position that a row does not see has the weight 0, a whole block the unit 0. */
EW_INLINE void ew_weigh(const int rows, const int vectors, ew_attention_scratch *z, int row, int column, int skip, int visible) {
#if EW_KV == EW_KV_INT8
    vf sum[EW_ATTENTION_ROWS][EW_WEIGHED];
    vi acc[EW_ATTENTION_ROWS][EW_WEIGHED];
    EW_UNROLL
    for (int r = 0; r < rows; r++)
        EW_UNROLL
        for (int v = 0; v < vectors; v++) sum[r][v] = vf_zero();
    for (int b = skip; b * EW_BLOCK < visible; b++) {
        const uint8_t *values = z->heads[b] + EW_KEY_BYTES + column * 4;
        EW_UNROLL
        for (int r = 0; r < rows; r++)
            EW_UNROLL
            for (int v = 0; v < vectors; v++) acc[r][v] = vi_set1(0);
        for (int t = 0; t < EW_BLOCK; t += 4) {
            vb value[EW_WEIGHED];
            EW_UNROLL
            for (int v = 0; v < vectors; v++) value[v] = vb_load(values + t * EW_VALUE_DIM + v * EW_LANES * 4);
            EW_UNROLL
            for (int r = 0; r < rows; r++) {
                vb w = vb_set1(&z->weights[row + r][b * EW_BLOCK + t]);
                EW_UNROLL
                for (int v = 0; v < vectors; v++) acc[r][v] = vi_dot_unsigned(acc[r][v], w, value[v]);
            }
        }
        EW_UNROLL
        for (int r = 0; r < rows; r++)
            EW_UNROLL
            for (int v = 0; v < vectors; v++) sum[r][v] = vf_fma(vf_from_vi(acc[r][v]), vf_set1(z->unit[row + r][b]), sum[r][v]);
    }
    EW_UNROLL
    for (int r = 0; r < rows; r++)
        EW_UNROLL
        for (int v = 0; v < vectors; v++) vf_store(z->split[row + r] + column + v * EW_LANES, sum[r][v]);
#else
    vf acc[EW_ATTENTION_ROWS][EW_WEIGHED];
    EW_UNROLL
    for (int r = 0; r < rows; r++)
        EW_UNROLL
        for (int v = 0; v < vectors; v++) acc[r][v] = vf_zero();
    for (int b = skip; b * EW_BLOCK < visible; b++) {
        const int end = visible - b * EW_BLOCK < EW_BLOCK ? visible - b * EW_BLOCK : EW_BLOCK;
        for (int t = 0; t < end; t++) {
            vf value[EW_WEIGHED];
            EW_UNROLL
            for (int v = 0; v < vectors; v++) {
                const size_t i = (size_t)t * EW_VALUE_DIM + column + v * EW_LANES;
#if EW_KV == EW_KV_BF16
                value[v] = vf_from_bf16((const uint16_t *)(z->heads[b] + EW_KEY_BYTES) + i);
#else
                value[v] = vf_load((const float *)(z->heads[b] + EW_KEY_BYTES) + i);
#endif
            }
            EW_UNROLL
            for (int r = 0; r < rows; r++) {
                vf w = vf_set1(z->scores[row + r][b * EW_BLOCK + t]);
                EW_UNROLL
                for (int v = 0; v < vectors; v++) acc[r][v] = vf_fma(w, value[v], acc[r][v]);
            }
        }
    }
    EW_UNROLL
    for (int r = 0; r < rows; r++)
        EW_UNROLL
        for (int v = 0; v < vectors; v++) vf_store(z->split[row + r] + column + v * EW_LANES, acc[r][v]);
#endif
}

/* Rows in equal blocks of at most EW_ATTENTION_ROWS. */
#if EW_ATTENTION_ROWS == 6
#define EW_ROW_CASES(CALL) case 1: { CALL(1); break; } case 2: { CALL(2); break; } case 3: { CALL(3); break; } case 4: { CALL(4); break; } case 5: { CALL(5); break; } default: { CALL(6); break; }
#else
#define EW_ROW_CASES(CALL) case 1: { CALL(1); break; } case 2: { CALL(2); break; } default: { CALL(3); break; }
#endif
#define EW_BY_ROWS(rows, CALL)                                                                   \
    for (int row = 0, left = ((rows) + EW_ATTENTION_ROWS - 1) / EW_ATTENTION_ROWS, now; left > 0; row += now, left--) { \
        now = ((rows) - row + left - 1) / left;                                                  \
        switch (now) { EW_ROW_CASES(CALL) }                                                      \
    }

/* Scores of one row become weights, e to the power of their distance from the row's maximum in this
 * split; returns the sum of weights and leaves the maximum in `high`. The row sees the positions `first` to `last`
 * of the split. */
static float ew_soften(ew_attention_scratch *z, int r, int first, int last, int begin, int end, float *high) {
    float *s = z->scores[r];
    vf most = vf_set1(-__builtin_inff()), total = vf_zero();
    for (int i = begin; i < end; i += EW_LANES) {
        vf v = vf_load(s + i);
        if (i < first || i + EW_LANES - 1 > last) {
            vi t = vi_lanes() + i;
            v = vf_select((t <= last) & (t >= first), v, vf_set1(-__builtin_inff()));
            vf_store(s + i, v);
        }
        most = vf_max(most, v);
    }
    const float scale = z->score_scale[r], top = vf_maximum(most) * scale;
    *high = top;
#if EW_KV == EW_KV_INT8
    for (int b = begin / EW_BLOCK; b * EW_BLOCK < end; b++) {
        const float *scales = (const float *)(z->heads[b] + EW_KEY_BYTES + EW_BLOCK * EW_VALUE_DIM);
        vf w[EW_BLOCK / EW_LANES], heaviest = vf_zero();
        EW_UNROLL
        for (int v = 0; v < EW_BLOCK / EW_LANES; v++) {
            const int i = b * EW_BLOCK + v * EW_LANES;
            w[v] = vf_exp2_8(vf_fma(vf_load(s + i), vf_set1(scale), vf_set1(-top)));
            total += w[v];
            w[v] *= vf_load(scales + v * EW_LANES);
            if (i < first || i + EW_LANES - 1 > last) { /* what was never written may be a NaN */
                vi t = vi_lanes() + i;
                w[v] = vf_select((t <= last) & (t >= first), w[v], vf_zero());
            }
            heaviest = vf_max(heaviest, w[v]);
        }
        const float heavy = vf_maximum(heaviest), units = heavy > 0 ? EW_HEAVIEST / heavy : 0.0f;
        z->unit[r][b] = heavy * (1 / EW_HEAVIEST);
        EW_UNROLL
        for (int v = 0; v < EW_BLOCK / EW_LANES; v++) vi_store_bytes((int8_t *)z->weights[r] + b * EW_BLOCK + v * EW_LANES, vi_from_vf(w[v] * units));
    }
    return vf_sum(total);
#else
    for (int i = begin; i < end; i += EW_LANES) {
        vf w = vf_exp2(vf_load(s + i) * scale - top);
        total += w;
        vf_store(s + i, w);
    }
    return vf_sum(total);
#endif
}

/* One split: scores, maximum, weights, weighted values; merged into the running result. `base` is the
 * split's first position, `visible` how many of its positions any of the rows sees. */
EW_INLINE void ew_attend_split(ew_attention_scratch *z, uint8_t *pool, size_t block_bytes, const int32_t *table, int layer, int kv_head, const int *positions, int rows, int base, int visible, int window) {
    const int low = positions[0] - window + 1 - base;
    const int skip = window > 0 && low > 0 ? low / EW_BLOCK : 0, blocks = (visible + EW_BLOCK - 1) / EW_BLOCK;
    for (int b = skip; b < blocks; b++) {
        const uint8_t *head = z->heads[b] = ew_kv_head(pool, block_bytes, table[base / EW_BLOCK + b], layer, kv_head);
        for (int c = 0; c < EW_BLOCK; c += 2 * EW_LANES) {
#define EW_CALL(N) ew_scores(N, z, row, head, c, z->scores, b * EW_BLOCK)
            EW_BY_ROWS(rows, EW_CALL)
#undef EW_CALL
        }
    }
    float high[EW_ITEM_ROWS], weight[EW_ITEM_ROWS];
    for (int r = 0; r < rows; r++) {
        const int last = positions[r] - base, first = window > 0 ? last - window + 1 : 0;
        z->seen[r] = last >= 0 && first < EW_SPLIT;
        weight[r] = ew_soften(z, r, z->seen[r] ? first : EW_SPLIT, last, skip * EW_BLOCK, blocks * EW_BLOCK, &high[r]);
    }
    int column = 0;
    for (; column + EW_WEIGHED * EW_LANES <= EW_VALUE_DIM; column += EW_WEIGHED * EW_LANES) {
#define EW_CALL(N) ew_weigh(N, EW_WEIGHED, z, row, column, skip, visible)
        EW_BY_ROWS(rows, EW_CALL)
#undef EW_CALL
    }
    for (; column < EW_VALUE_DIM; column += EW_LANES) {
#define EW_CALL(N) ew_weigh(N, 1, z, row, column, skip, visible)
        EW_BY_ROWS(rows, EW_CALL)
#undef EW_CALL
    }
    for (int r = 0; r < rows; r++) {
        if (!z->seen[r]) continue;
        float before = 0, now = 1, most = high[r];
        if (z->weight[r] > 0) {
            most = z->high[r] > high[r] ? z->high[r] : high[r];
            vf factors = vf_exp2(vf_select(vi_lanes() == 0, vf_set1(z->high[r] - most), vf_set1(high[r] - most)));
            before = factors[0];
            now = factors[1];
        }
        z->high[r] = most;
        z->weight[r] = z->weight[r] * before + weight[r] * now;
        for (int i = 0; i < EW_VALUE_DIM; i += EW_LANES)
            vf_store(z->sum[r] + i, vf_load(z->sum[r] + i) * before + vf_load(z->split[r] + i) * now);
    }
}

/* Attention of `count` neighbouring tokens of one sequence, the first at `position`, over one KV head.
 * `q` and `out` point at the first token's row; rows hold all query heads. */
EW_NOINLINE void ew_attend(ew_attention_scratch *z, uint8_t *pool, size_t block_bytes, const int32_t *table, int layer, int kv_head, const uint8_t *q, size_t q_stride, uint8_t *out, size_t out_stride, int count, int position, float scale, int window) {
    const int rows = count * EW_QUERIES;
    int positions[EW_ITEM_ROWS];
    for (int i = 0; i < count; i++)
        for (int g = 0; g < EW_QUERIES; g++) {
            const int r = i * EW_QUERIES + g;
            const float *x = EW_ROW(const float, q, q_stride, i) + (kv_head * EW_QUERIES + g) * EW_HEAD_DIM;
            positions[r] = position + i;
            z->weight[r] = 0;
            z->high[r] = 0;
#if EW_KV == EW_KV_INT8
            const float query = ew_quantize_head(EW_HEAD_TURN, x, z->query8[r], &z->offset[r]);
            z->score_scale[r] = query == 0 ? EW_LOG2E : query * (scale * EW_LOG2E / EW_HEAD_TURN);
            z->offset[r] *= -EW_OFFSET;
#else
            for (int d = 0; d < EW_HEAD_DIM; d++) z->query[r][d] = x[d] * (scale * EW_LOG2E);
            z->score_scale[r] = 1;
#endif
        }
    memset(z->sum, 0, (size_t)rows * sizeof z->sum[0]);
    const int end = position + count;
    int base = window > 0 && position >= window ? (position - window + 1) / EW_SPLIT * EW_SPLIT : 0;
    for (; base < end; base += EW_SPLIT) {
        const int visible = end - base < EW_SPLIT ? end - base : EW_SPLIT;
        ew_attend_split(z, pool, block_bytes, table, layer, kv_head, positions, rows, base, visible, window);
    }
    for (int i = 0; i < count; i++)
        for (int g = 0; g < EW_QUERIES; g++) {
            const int r = i * EW_QUERIES + g;
            float *y = EW_ROW(float, out, out_stride, i) + (kv_head * EW_QUERIES + g) * EW_HEAD_DIM;
            for (int d = 0; d < EW_HEAD_DIM; d++) y[d] = z->sum[r][d] / z->weight[r];
        }
}

#endif
