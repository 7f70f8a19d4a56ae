/* Products of int8 rows with int8 and int4 weights: sums of integers in each group, which are exact, then scaled. */
#ifndef EW_PRODUCT_INT_H
#define EW_PRODUCT_INT_H

#include "panels.h"

#if defined(EW_HAS_I8MM)

/* Sums of pairs of rows and pairs of columns, as vi_dot_pairs has them: [rows / 2][vector][its half]. */
typedef vi ew_pairs[EW_MAX_ROWS / 2][EW_VECTORS][2];

/* Adds products of four columns and eight elements of each row: of columns, `first` has four elements, `next` those
 * behind them; `x` is where the first row has the eight. Without a second row of a pair, the first counts twice. */
EW_INLINE void ew_add_pairs(const int rows, ew_pairs sums, int v, vb first, vb next, const uint8_t *x, size_t stride) {
    const vb left = (vb)__builtin_shufflevector((vi)first, (vi)next, 0, 4, 1, 5);
    const vb right = (vb)__builtin_shufflevector((vi)first, (vi)next, 2, 6, 3, 7);
    EW_UNROLL
    for (int r = 0; r < rows; r += 2) {
        const vb both = vb_pair(x + r * stride, x + (r + 1 < rows ? r + 1 : r) * stride);
        sums[r / 2][v][0] = vi_dot_pairs(sums[r / 2][v][0], both, left);
        sums[r / 2][v][1] = vi_dot_pairs(sums[r / 2][v][1], both, right);
    }
}
EW_INLINE void ew_split_pairs(const int rows, ew_pairs sums, vi (*total)[EW_VECTORS]) {
    EW_UNROLL
    for (int r = 0; r < rows; r++)
        EW_UNROLL
        for (int v = 0; v < EW_VECTORS; v++) {
            const vi left = sums[r / 2][v][0], right = sums[r / 2][v][1];
            total[r][v] = r & 1 ? __builtin_shufflevector(left, right, 2, 3, 6, 7) : __builtin_shufflevector(left, right, 0, 1, 4, 5);
        }
}

#endif

/* Adds a group's integer products to `total`. One row has two chains of sums, to be faster. */
EW_INLINE void ew_sum_q8(const int group, const int rows, const uint8_t *w, const uint8_t *x, size_t stride, vi (*total)[EW_VECTORS], const int prefetch) {
#if defined(EW_HAS_I8MM)
    if (rows > 1) {
        ew_pairs sums = {0};
        for (int at = 0; at < group; at += 8, w += 8 * EW_PANEL)
            EW_UNROLL
            for (int v = 0; v < EW_VECTORS; v++) {
                const uint8_t *first = w + v * EW_LANES * 4, *next = first + EW_PANEL * 4;
                if (prefetch) ew_prefetch(first + EW_PREFETCH);
                if (prefetch) ew_prefetch(next + EW_PREFETCH);
                ew_add_pairs(rows, sums, v, vb_load(first), vb_load(next), x + at, stride);
            }
        ew_split_pairs(rows, sums, total);
        return;
    }
#endif
    vi second[EW_VECTORS];
    EW_UNROLL
    for (int v = 0; v < EW_VECTORS; v++) second[v] = vi_set1(0);
    for (int at = 0; at < group; at += EW_UNROLLED, w += EW_UNROLLED * EW_PANEL)
        EW_UNROLL
        for (int s = 0; s < EW_UNROLLED / 4; s++) {
            vb bytes[EW_VECTORS];
            EW_UNROLL
            for (int v = 0; v < EW_VECTORS; v++) {
                bytes[v] = vb_load(w + (s * EW_VECTORS + v) * EW_LANES * 4);
                if (prefetch) ew_prefetch(w + EW_PREFETCH + (s * EW_VECTORS + v) * EW_LANES * 4);
            }
            EW_UNROLL
            for (int r = 0; r < rows; r++) {
                vi *sum = rows == 1 && (s & 1) ? second : total[r];
                const vb a = vb_set1(x + at + r * stride + 4 * s);
                EW_UNROLL
                for (int v = 0; v < EW_VECTORS; v++) sum[v] = vi_dot(sum[v], bytes[v], a);
            }
        }
    EW_UNROLL
    for (int v = 0; v < EW_VECTORS; v++)
        if (rows == 1) total[0][v] += second[v];
}

EW_INLINE void ew_rows_q8(const int group, const int rows, const uint8_t *panel, int k, const uint8_t *x, size_t stride, vf (*out)[EW_VECTORS], const int prefetch) {
    const int groups = k / group;
    EW_UNROLL
    for (int r = 0; r < rows; r++)
        EW_UNROLL
        for (int v = 0; v < EW_VECTORS; v++) out[r][v] = vf_zero();
    for (int g = 0; g < groups; g++) {
        vi total[EW_MAX_ROWS][EW_VECTORS];
        EW_UNROLL
        for (int r = 0; r < rows; r++) {
            int32_t start = 0;
            if (EW_OFFSET) memcpy(&start, x + r * stride + k + 4 * (groups + g), 4);
            EW_UNROLL
            for (int v = 0; v < EW_VECTORS; v++) total[r][v] = vi_set1(start);
        }
        ew_sum_q8(group, rows, panel + EW_PANEL * 2, x + g * group, stride, total, prefetch);
        EW_UNROLL
        for (int r = 0; r < rows; r++) {
            float scale;
            memcpy(&scale, x + r * stride + k + 4 * g, 4);
            EW_UNROLL
            for (int v = 0; v < EW_VECTORS; v++) {
                vf both = vf_from_bf16((const uint16_t *)panel + v * EW_LANES) * scale;
                out[r][v] = vf_fma(vf_from_vi(total[r][v]), both, out[r][v]);
            }
        }
        panel += EW_Q8_GROUP_BYTES(group);
    }
}

/* As ew_sum_q8, from zero, for the vectors `from` to `to` of columns: `low` and `high` are four bits of the group's first
 * half and of its second. */
#if defined(EW_SHORT_SUMS)
EW_INLINE void ew_sum_q4(const int group, const int rows, const int from, const int to, const uint8_t *w, const uint8_t *x, size_t stride, vi (*total)[EW_VECTORS], const int prefetch) {
    const vb mask = (vb)vi_set1(0x0f0f0f0f);
    EW_UNROLL
    for (int v = from; v < to; v++) {
        EW_UNROLL
        for (int r = 0; r < rows; r++) total[r][v] = vi_set1(0);
        EW_UNROLL
        for (int first = 0; first < group / 8; first += EW_SHORT_SUMS / 2) {
            vw sums[EW_MAX_ROWS] = {0};
            EW_UNROLL
            for (int s = first; s < first + EW_SHORT_SUMS / 2 && s < group / 8; s++) {
                const uint8_t *four = w + (s * EW_VECTORS + v) * EW_LANES * 4;
                const vb both = vb_load(four), low = both & mask, high = (vb)((vu)both >> 4) & mask;
                if (prefetch) ew_prefetch(four + EW_PREFETCH);
                EW_UNROLL
                for (int r = 0; r < rows; r++) {
                    const uint8_t *values = x + r * stride + 4 * s;
                    sums[r] += vw_pairs(low, vb_set1(values)) + vw_pairs(high, vb_set1(values + group / 2));
                }
            }
            EW_UNROLL
            for (int r = 0; r < rows; r++) total[r][v] = vi_add_pairs(total[r][v], sums[r]);
        }
    }
}
#else
EW_INLINE void ew_sum_q4(const int group, const int rows, const int from, const int to, const uint8_t *w, const uint8_t *x, size_t stride, vi (*total)[EW_VECTORS], const int prefetch) {
    (void)from, (void)to; /* all */
    const vb mask = (vb)vi_set1(0x0f0f0f0f);
#if defined(EW_HAS_I8MM)
    if (rows > 1) {
        ew_pairs sums = {0};
        EW_UNROLL
        for (int at = 0; at < group / 2; at += 8)
            EW_UNROLL
            for (int v = 0; v < EW_VECTORS; v++) {
                const uint8_t *four = w + (at / 4 * EW_VECTORS + v) * EW_LANES * 4;
                const vb first = vb_load(four), next = vb_load(four + EW_PANEL * 4);
                if (prefetch) ew_prefetch(four + EW_PREFETCH);
                if (prefetch) ew_prefetch(four + EW_PANEL * 4 + EW_PREFETCH);
                ew_add_pairs(rows, sums, v, first & mask, next & mask, x + at, stride);
                ew_add_pairs(rows, sums, v, (vb)((vu)first >> 4) & mask, (vb)((vu)next >> 4) & mask, x + group / 2 + at, stride);
            }
        ew_split_pairs(rows, sums, total);
        return;
    }
#endif
    vi second[EW_VECTORS];
    EW_UNROLL
    for (int v = 0; v < EW_VECTORS; v++) {
        second[v] = vi_set1(0);
        EW_UNROLL
        for (int r = 0; r < rows; r++) total[r][v] = vi_set1(0);
    }
    EW_UNROLL
    for (int s = 0; s < group / 8; s++) {
        vb low[EW_VECTORS], high[EW_VECTORS];
        EW_UNROLL
        for (int v = 0; v < EW_VECTORS; v++) {
            vb both = vb_load(w + (s * EW_VECTORS + v) * EW_LANES * 4);
            if (prefetch) ew_prefetch(w + EW_PREFETCH + (s * EW_VECTORS + v) * EW_LANES * 4);
            low[v] = both & mask;
            high[v] = (vb)((vu)both >> 4) & mask;
        }
        EW_UNROLL
        for (int r = 0; r < rows; r++) {
            const uint8_t *values = x + r * stride + 4 * s;
            vi *other = rows == 1 ? second : total[r];
            vb a = vb_set1(values), b = vb_set1(values + group / 2);
            EW_UNROLL
            for (int v = 0; v < EW_VECTORS; v++) {
                total[r][v] = vi_dot(total[r][v], low[v], a);
                other[v] = vi_dot(other[v], high[v], b);
            }
        }
    }
    EW_UNROLL
    for (int v = 0; v < EW_VECTORS; v++)
        if (rows == 1) total[0][v] += second[v];
}
#endif

/* x is q * s, w is u * scale + minimum, so a group adds (sum of q u) * s * scale + (s * sum of q) * minimum. */
EW_INLINE void ew_columns_q4(const int group, const int rows, const int from, const int to, const uint8_t *panel, int k, const uint8_t *x, size_t stride, vf (*out)[EW_VECTORS], const int prefetch) {
    const int groups = k / group;
    EW_UNROLL
    for (int r = 0; r < rows; r++)
        EW_UNROLL
        for (int v = from; v < to; v++) out[r][v] = vf_zero();
    for (int g = 0; g < groups; g++) {
        vi total[EW_MAX_ROWS][EW_VECTORS];
        ew_sum_q4(group, rows, from, to, panel + EW_PANEL * 4, x + g * group, stride, total, prefetch);
        vf scales[EW_VECTORS], minima[EW_VECTORS];
        EW_UNROLL
        for (int v = from; v < to; v++) {
            scales[v] = vf_from_f16((const uint16_t *)panel + v * EW_LANES);
            minima[v] = vf_from_f16((const uint16_t *)panel + EW_PANEL + v * EW_LANES);
            if (prefetch) ew_prefetch(panel + EW_PREFETCH + v * EW_LANES * 4);
        }
        EW_UNROLL
        for (int r = 0; r < rows; r++) {
            float scale, sum;
            memcpy(&scale, x + r * stride + k + 4 * g, 4);
            memcpy(&sum, x + r * stride + k + 4 * (groups + g), 4);
            EW_UNROLL
            for (int v = from; v < to; v++) {
                out[r][v] = vf_fma(vf_from_vi(total[r][v]), scales[v] * scale, out[r][v]);
                out[r][v] = vf_fma(minima[v], vf_set1(sum), out[r][v]);
            }
        }
        panel += EW_Q4_GROUP_BYTES(group);
    }
}
/* Several rows of short sums take a vector of columns at a time: sixteen registers hold no more. */
EW_INLINE void ew_rows_q4(const int group, const int rows, const uint8_t *panel, int k, const uint8_t *x, size_t stride, vf (*out)[EW_VECTORS], const int prefetch) {
#if defined(EW_SHORT_SUMS)
    const int step = rows == 1 ? EW_VECTORS : 1;
#else
    const int step = EW_VECTORS;
#endif
    EW_UNROLL
    for (int v = 0; v < EW_VECTORS; v += step) ew_columns_q4(group, rows, v, v + step, panel, k, x, stride, out, prefetch);
}

#endif
