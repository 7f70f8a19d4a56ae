/* A few rows of activations times one packed panel of weights: one kernel a weight format.
 *
 * An output element is summed over k in ascending order, one group after the other, by the same
 * instructions whatever the number of rows, panels or threads: that is the rule of one result.
 *
 * Panel layouts, EW_PANEL columns wide, k padded with zeros to whole groups (int8) or pairs (bf16):
 *   int8   per group: EW_PANEL bf16 scales, then [group / 4][EW_PANEL][4] bytes of w + EW_OFFSET
 *   int4   per group: EW_PANEL f16 scales, EW_PANEL f16 minima, then [group / 8][EW_PANEL][4] bytes: w of
 *          the group's first half in the low four bits, of its second half in the high ones
 *   bf16   [k / 2][EW_PANEL][2]
 *   f32    [k][EW_PANEL]
 * A row of int8 activations is: k bytes, then a float scale a group, then 4 bytes a group. Rotated, for int8
 * weights: the int32 -EW_OFFSET times the sum of the group's bytes, and a group is a multiple of EW_UNROLLED.
 * Not rotated, for int4 weights: the float scale times that sum, which the minimum is to be multiplied by.
 */
#ifndef EW_PRODUCT_H
#define EW_PRODUCT_H

#include "isa.h"

#define EW_Q8_GROUP_BYTES(group) ((size_t)EW_PANEL * (2 + (group)))
#define EW_Q4_GROUP_BYTES(group) ((size_t)EW_PANEL * (4 + (group) / 2))
#define EW_PREFETCH 4096   /* bytes ahead */
#define EW_UNROLLED 64 /* elements along k, written out in the kernel's loop */

enum { EW_F32, EW_BF16, EW_Q8, EW_Q4 };

EW_INLINE void ew_rows_q8(const int group, const int rows, const uint8_t *panel, int k, const uint8_t *x, size_t stride, vf (*out)[EW_VECTORS], const int prefetch) {
    const int groups = k / group, chains = rows == 1 ? 2 : 1;
    EW_UNROLL
    for (int r = 0; r < rows; r++)
        EW_UNROLL
        for (int v = 0; v < EW_VECTORS; v++) out[r][v] = vf_zero();
    for (int g = 0; g < groups; g++) {
        const uint8_t *w = panel + EW_PANEL * 2;
        vi acc[EW_MAX_ROWS][EW_VECTORS];
        EW_UNROLL
        for (int r = 0; r < rows; r++) {
            int32_t start = 0;
            if (EW_OFFSET) memcpy(&start, x + r * stride + k + 4 * (groups + g), 4);
            EW_UNROLL
            for (int v = 0; v < EW_VECTORS; v++) {
                acc[r][v] = vi_set1(start);
                if (chains == 2) acc[1][v] = vi_set1(0);
            }
        }
        for (int at = 0; at < group; at += EW_UNROLLED, w += EW_UNROLLED * EW_PANEL) {
            const uint8_t *values = x + g * group + at;
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
                    vb a = vb_set1(values + r * stride + 4 * s);
                    const int c = chains == 2 ? (s & 1) : r;
                    EW_UNROLL
                    for (int v = 0; v < EW_VECTORS; v++) acc[c][v] = vi_dot(acc[c][v], bytes[v], a);
                }
            }
        }
        EW_UNROLL
        for (int r = 0; r < rows; r++) {
            float scale;
            memcpy(&scale, x + r * stride + k + 4 * g, 4);
            EW_UNROLL
            for (int v = 0; v < EW_VECTORS; v++) {
                vi total = chains == 2 ? acc[0][v] + acc[1][v] : acc[r][v];
                vf both = vf_from_bf16((const uint16_t *)panel + v * EW_LANES) * scale;
                out[r][v] = vf_fma(vf_from_vi(total), both, out[r][v]);
            }
        }
        panel += EW_Q8_GROUP_BYTES(group);
    }
}

/* x is q * s, w is u * scale + minimum, so a group adds (sum of q u) * s * scale + (s * sum of q) * minimum. */
EW_INLINE void ew_rows_q4(const int group, const int rows, const uint8_t *panel, int k, const uint8_t *x, size_t stride, vf (*out)[EW_VECTORS], const int prefetch) {
    const int groups = k / group, half = group / 8, chains = rows == 1 ? 2 : 1;
    const vb mask = (vb)vi_set1(0x0f0f0f0f);
    EW_UNROLL
    for (int r = 0; r < rows; r++)
        EW_UNROLL
        for (int v = 0; v < EW_VECTORS; v++) out[r][v] = vf_zero();
    for (int g = 0; g < groups; g++) {
        const uint8_t *w = panel + EW_PANEL * 4;
        vi acc[EW_MAX_ROWS][EW_VECTORS];
        EW_UNROLL
        for (int r = 0; r < rows * chains; r++)
            EW_UNROLL
            for (int v = 0; v < EW_VECTORS; v++) acc[r][v] = vi_set1(0);
        EW_UNROLL
        for (int s = 0; s < half; s++) {
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
                const uint8_t *values = x + r * stride + g * group + 4 * s;
                vb a = vb_set1(values), b = vb_set1(values + group / 2);
                EW_UNROLL
                for (int v = 0; v < EW_VECTORS; v++) {
                    acc[r][v] = vi_dot(acc[r][v], low[v], a);
                    acc[r * chains + chains - 1][v] = vi_dot(acc[r * chains + chains - 1][v], high[v], b);
                }
            }
        }
        vf scales[EW_VECTORS], minima[EW_VECTORS];
        EW_UNROLL
        for (int v = 0; v < EW_VECTORS; v++) {
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
            for (int v = 0; v < EW_VECTORS; v++) {
                vi total = chains == 2 ? acc[0][v] + acc[1][v] : acc[r][v];
                out[r][v] = vf_fma(vf_from_vi(total), scales[v] * scale, out[r][v]);
                out[r][v] = vf_fma(minima[v], vf_set1(sum), out[r][v]);
            }
        }
        panel += EW_Q4_GROUP_BYTES(group);
    }
}

EW_INLINE void ew_rows_f32(const int rows, const uint8_t *panel, int k, const uint8_t *x, size_t stride, vf (*out)[EW_VECTORS], const int prefetch) {
    vf sum[EW_MAX_ROWS][EW_VECTORS];
    EW_UNROLL
    for (int r = 0; r < rows; r++)
        EW_UNROLL
        for (int v = 0; v < EW_VECTORS; v++) sum[r][v] = vf_zero();
    for (int i = 0; i < k; i++) {
        const float *w = (const float *)panel + (size_t)i * EW_PANEL;
        EW_UNROLL
        for (int v = 0; v < EW_VECTORS; v++)
            if (prefetch) ew_prefetch((const uint8_t *)(w + v * EW_LANES) + EW_PREFETCH);
        EW_UNROLL
        for (int r = 0; r < rows; r++) {
            vf a = vf_set1(((const float *)(x + r * stride))[i]);
            EW_UNROLL
            for (int v = 0; v < EW_VECTORS; v++) sum[r][v] = vf_fma(a, vf_load(w + v * EW_LANES), sum[r][v]);
        }
    }
    EW_UNROLL
    for (int r = 0; r < rows; r++)
        EW_UNROLL
        for (int v = 0; v < EW_VECTORS; v++) out[r][v] = sum[r][v];
}

/* Two chains, even and odd k, added at the end: the pairs lie side by side in one 32-bit lane. */
EW_INLINE void ew_rows_bf16(const int rows, const uint8_t *panel, int k, const uint8_t *x, size_t stride, vf (*out)[EW_VECTORS], const int prefetch) {
    vf even[EW_MAX_ROWS][EW_VECTORS], odd[EW_MAX_ROWS][EW_VECTORS];
    EW_UNROLL
    for (int r = 0; r < rows; r++)
        EW_UNROLL
        for (int v = 0; v < EW_VECTORS; v++) even[r][v] = odd[r][v] = vf_zero();
    for (int i = 0; i < k; i += 2) {
        const uint8_t *w = panel + (size_t)i * EW_PANEL * 2;
        vf low[EW_VECTORS], high[EW_VECTORS];
        EW_UNROLL
        for (int v = 0; v < EW_VECTORS; v++) {
            vi pair = vi_load((const int32_t *)w + v * EW_LANES);
            low[v] = vf_bits(pair << 16);
            high[v] = vf_bits(pair & (int32_t)0xffff0000);
            if (prefetch) ew_prefetch(w + EW_PREFETCH + v * EW_LANES * 4);
        }
        EW_UNROLL
        for (int r = 0; r < rows; r++) {
            const float *a = (const float *)(x + r * stride) + i;
            EW_UNROLL
            for (int v = 0; v < EW_VECTORS; v++) {
                even[r][v] = vf_fma(vf_set1(a[0]), low[v], even[r][v]);
                odd[r][v] = vf_fma(vf_set1(a[1]), high[v], odd[r][v]);
            }
        }
    }
    EW_UNROLL
    for (int r = 0; r < rows; r++)
        EW_UNROLL
        for (int v = 0; v < EW_VECTORS; v++) out[r][v] = even[r][v] + odd[r][v];
}

/* `rows` rows of a product in `format`, a compile-time constant as `group` and `rows` are. */
EW_INLINE void ew_rows(const int format, const int group, const int rows, const uint8_t *panel, int k, const uint8_t *x, size_t stride, vf (*out)[EW_VECTORS], const int prefetch) {
    if (format == EW_F32) ew_rows_f32(rows, panel, k, x, stride, out, prefetch);
    if (format == EW_BF16) ew_rows_bf16(rows, panel, k, x, stride, out, prefetch);
    if (format == EW_Q8) ew_rows_q8(group, rows, panel, k, x, stride, out, prefetch);
    if (format == EW_Q4) ew_rows_q4(group, rows, panel, k, x, stride, out, prefetch);
}

#endif
