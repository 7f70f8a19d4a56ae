/* A few rows of activations times one packed panel of weights: one kernel a weight format.
 *
 * An output element is summed over k in ascending order, one group after the other, by the same
 * instructions whatever the number of rows, panels or threads: that is the rule of one result.
 *
 * Panel layouts, EW_PANEL columns wide, k padded with zeros to whole groups (int8, int4) or, with EW_HAS_BF16, to
 * a multiple of EW_DOT_STEP (bf16, fp8):
 *   int8   per group: EW_PANEL bf16 scales, then [group / 4][EW_PANEL][4] bytes of w + EW_OFFSET
 *   int4   per group: EW_PANEL f16 scales, EW_PANEL f16 minima, then [group / 8][EW_PANEL][4] bytes: w of
 *          the group's first half in the low four bits, of its second half in the high ones
 *   bf16   [k / 2][EW_PANEL][2]
 *   f32    [k][EW_PANEL]
 *   fp8    EW_PANEL bf16 scales, then [k / 4][EW_PANEL][4] bytes of e4m3, of each four the elements 0, 2, 1, 3
 * A row of int8 activations is: k bytes, then a float scale a group, then 4 bytes a group. Rotated, for int8
 * weights: the int32 -EW_OFFSET times the sum of the group's bytes, and a group is a multiple of EW_UNROLLED.
 * Not rotated, for int4 weights: the float scale times that sum, which the minimum is to be multiplied by.
 * With EW_HAS_BF16, a row for bf16 or fp8 weights is k bf16; all other rows are floats.
 */
#ifndef EW_PRODUCT_H
#define EW_PRODUCT_H

#include "isa.h"

#define EW_Q8_GROUP_BYTES(group) ((size_t)EW_PANEL * (2 + (group)))
#define EW_Q4_GROUP_BYTES(group) ((size_t)EW_PANEL * (4 + (group) / 2))
#define EW_PREFETCH 4096   /* bytes ahead */
#define EW_PREFETCH_ROWS 3 /* fewer leave it to the processor, which then does better: int4 gains half, int8 a twentieth */
#define EW_UNROLLED 64 /* elements along k, written out in the kernel's loop */

enum { EW_F32, EW_BF16, EW_Q8, EW_Q4, EW_FP8 };

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

/* As ew_sum_q8, from zero: `low` and `high` are four bits of the group's first half and of its second. */
EW_INLINE void ew_sum_q4(const int group, const int rows, const uint8_t *w, const uint8_t *x, size_t stride, vi (*total)[EW_VECTORS], const int prefetch) {
    const vb mask = (vb)vi_set1(0x0f0f0f0f);
#if defined(EW_HAS_I8MM)
    if (rows > 1) {
        ew_pairs sums = {0};
        EW_UNROLL
        for (int at = 0; at < group / 2; at += 8)
            EW_UNROLL
            for (int v = 0; v < EW_VECTORS; v++) {
                const uint8_t *from = w + (at / 4 * EW_VECTORS + v) * EW_LANES * 4;
                const vb first = vb_load(from), next = vb_load(from + EW_PANEL * 4);
                if (prefetch) ew_prefetch(from + EW_PREFETCH);
                if (prefetch) ew_prefetch(from + EW_PANEL * 4 + EW_PREFETCH);
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

/* x is q * s, w is u * scale + minimum, so a group adds (sum of q u) * s * scale + (s * sum of q) * minimum. */
EW_INLINE void ew_rows_q4(const int group, const int rows, const uint8_t *panel, int k, const uint8_t *x, size_t stride, vf (*out)[EW_VECTORS], const int prefetch) {
    const int groups = k / group;
    EW_UNROLL
    for (int r = 0; r < rows; r++)
        EW_UNROLL
        for (int v = 0; v < EW_VECTORS; v++) out[r][v] = vf_zero();
    for (int g = 0; g < groups; g++) {
        vi total[EW_MAX_ROWS][EW_VECTORS];
        ew_sum_q4(group, rows, panel + EW_PANEL * 4, x + g * group, stride, total, prefetch);
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
                out[r][v] = vf_fma(vf_from_vi(total[r][v]), scales[v] * scale, out[r][v]);
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

#if defined(EW_HAS_BF16)

/* Both bytes of a bf16, by the seven bits of an e4m3 without its sign. */
#define EW_E4M3(i) ((i) > 7 ? 15360 + 16 * (i) : (i) > 3 ? 15232 + 32 * (i) : (i) > 1 ? 15104 + 64 * (i) : 15104 * (i))
#define EW_HIGH(i) EW_E4M3(i) >> 8
#define EW_LOW(i) EW_E4M3(i) & 255
#define EW_EIGHT(F, i) F(i), F(i + 1), F(i + 2), F(i + 3), F(i + 4), F(i + 5), F(i + 6), F(i + 7)
#define EW_64(F, i) EW_EIGHT(F, i), EW_EIGHT(F, i + 8), EW_EIGHT(F, i + 16), EW_EIGHT(F, i + 24), EW_EIGHT(F, i + 32), EW_EIGHT(F, i + 40), EW_EIGHT(F, i + 48), EW_EIGHT(F, i + 56)
static const uint8_t ew_e4m3_high[128] EW_ALIGNED = {EW_64(EW_HIGH, 0), EW_64(EW_HIGH, 64)};
static const uint8_t ew_e4m3_low[128] EW_ALIGNED = {EW_64(EW_LOW, 0), EW_64(EW_LOW, 64)};

/* Two pairs along k of EW_LANES columns, as bf16: the first of each chain, then of the other. */
EW_INLINE void ew_dot_pairs(const int format, const uint8_t *panel, int i, int v, vb *pairs) {
    if (format == EW_BF16) {
        pairs[0] = vb_load(panel + ((size_t)i * EW_PANEL + v * EW_LANES * 2) * 2);
        pairs[1] = vb_load(panel + ((size_t)(i + 2) * EW_PANEL + v * EW_LANES * 2) * 2);
    } else {
        const vb four = vb_load(panel + (size_t)i * EW_PANEL + v * EW_LANES * 4);
        const vi low = (vi)vb_look_up(four, ew_e4m3_low), sign = vi_set1((int32_t)0x80808080);
        const vi high = (vi)vb_look_up(four, ew_e4m3_high) | ((vi)four & sign), odd = vi_set1(0x00ff00ff);
        pairs[0] = (vb)vi_select(odd, low, high << 8);
        pairs[1] = (vb)vi_select(odd, (vi)((vu)low >> 8), high);
    }
}

/* Two chains of pairs, added at the end. */
EW_INLINE void ew_rows_dot(const int format, const int rows, const uint8_t *panel, int k, const uint8_t *x, size_t stride, vf (*out)[EW_VECTORS], const int prefetch) {
    vf sum[2][EW_MAX_ROWS][EW_VECTORS];
    EW_UNROLL
    for (int r = 0; r < rows; r++)
        EW_UNROLL
        for (int v = 0; v < EW_VECTORS; v++) sum[0][r][v] = sum[1][r][v] = vf_zero();
    for (int i = 0; i < k; i += 4) {
        const uint8_t *ahead = panel + (size_t)i * EW_PANEL * (format == EW_BF16 ? 2 : 1) + EW_PREFETCH;
        EW_UNROLL
        for (int at = 0; at < 4 * EW_PANEL * (format == EW_BF16 ? 2 : 1); at += EW_LANES * 4)
            if (prefetch) ew_prefetch(ahead + at);
        EW_UNROLL
        for (int v = 0; v < EW_VECTORS; v++) {
            vb pairs[2];
            if (format == EW_FP8) ew_forget(); /* the rows: their numbers would take the registers that decoding needs */
            ew_dot_pairs(format, panel, i, v, pairs);
            EW_UNROLL
            for (int r = 0; r < rows; r++)
                EW_UNROLL
                for (int c = 0; c < 2; c++) sum[c][r][v] = vf_dot(sum[c][r][v], pairs[c], vb_set1(x + r * stride + 2 * i + 4 * c));
        }
    }
    EW_UNROLL
    for (int r = 0; r < rows; r++)
        EW_UNROLL
        for (int v = 0; v < EW_VECTORS; v++) out[r][v] = sum[0][r][v] + sum[1][r][v];
}
#if defined(EW_HAS_AMX)
/* What tiles give (amx.h), for when the system grants none: 16 pairs in two chains from zero, then the sum of both to
 * the rest. Subnormals are zeros to them. */
EW_INLINE void ew_rows_bf16(const int rows, const uint8_t *panel, int k, const uint8_t *x, size_t stride, vf (*out)[EW_VECTORS], const int prefetch) {
    const unsigned mode = _mm_getcsr();
    _mm_setcsr(mode | 0x8040);
    EW_UNROLL
    for (int r = 0; r < rows; r++)
        EW_UNROLL
        for (int v = 0; v < EW_VECTORS; v++) out[r][v] = vf_zero();
    for (int block = 0; block < k; block += EW_DOT_STEP) {
        vf sum[2][EW_MAX_ROWS][EW_VECTORS];
        EW_UNROLL
        for (int r = 0; r < rows; r++)
            EW_UNROLL
            for (int v = 0; v < EW_VECTORS; v++) sum[0][r][v] = sum[1][r][v] = vf_zero();
        for (int i = block; i < block + EW_DOT_STEP; i += 2)
            EW_UNROLL
            for (int v = 0; v < EW_VECTORS; v++) {
                const uint8_t *w = panel + ((size_t)i * EW_PANEL + v * EW_LANES * 2) * 2;
                const vi pair = vi_load((const int32_t *)w);
                if (prefetch) ew_prefetch(w + EW_PREFETCH);
                EW_UNROLL
                for (int r = 0; r < rows; r++) {
                    const vi a = (vi)vb_set1(x + r * stride + 2 * i);
                    sum[0][r][v] = vf_fma(vf_bits(a << 16), vf_bits(pair << 16), sum[0][r][v]);
                    sum[1][r][v] = vf_fma(vf_bits(a & (int32_t)0xffff0000), vf_bits(pair & (int32_t)0xffff0000), sum[1][r][v]);
                }
            }
        EW_UNROLL
        for (int r = 0; r < rows; r++)
            EW_UNROLL
            for (int v = 0; v < EW_VECTORS; v++) out[r][v] += sum[0][r][v] + sum[1][r][v];
    }
    _mm_setcsr(mode);
}
#else
EW_INLINE void ew_rows_bf16(const int rows, const uint8_t *panel, int k, const uint8_t *x, size_t stride, vf (*out)[EW_VECTORS], const int prefetch) {
    ew_rows_dot(EW_BF16, rows, panel, k, x, stride, out, prefetch);
}
#endif
EW_INLINE void ew_sum_fp8(const int rows, const uint8_t *w, int k, const uint8_t *x, size_t stride, vf (*out)[EW_VECTORS], const int prefetch) {
    ew_rows_dot(EW_FP8, rows, w, k, x, stride, out, prefetch);
}

#else

/* Two chains, even and odd k, added at the end: the pairs lie side by side in one 32-bit lane. */
EW_INLINE void ew_rows_bf16(const int rows, const uint8_t *panel, int k, const uint8_t *x, size_t stride, vf (*out)[EW_VECTORS], const int prefetch) {
    vf sum[2][EW_MAX_ROWS][EW_VECTORS];
    EW_UNROLL
    for (int r = 0; r < rows; r++)
        EW_UNROLL
        for (int v = 0; v < EW_VECTORS; v++) sum[0][r][v] = sum[1][r][v] = vf_zero();
    for (int i = 0; i < k; i += 2) {
        const uint8_t *w = panel + (size_t)i * EW_PANEL * 2;
        EW_UNROLL
        for (int v = 0; v < EW_VECTORS; v++)
            if (prefetch) ew_prefetch(w + EW_PREFETCH + v * EW_LANES * 4);
        EW_UNROLL
        for (int c = 0; c < 2; c++) {
            vf one[EW_VECTORS];
            ew_forget();
            EW_UNROLL
            for (int v = 0; v < EW_VECTORS; v++) {
                const vi pair = vi_load((const int32_t *)w + v * EW_LANES);
                one[v] = vf_bits(c ? pair & (int32_t)0xffff0000 : pair << 16);
            }
            EW_UNROLL
            for (int r = 0; r < rows; r++) {
                const vf a = vf_set1(((const float *)(x + r * stride))[i + c]);
                EW_UNROLL
                for (int v = 0; v < EW_VECTORS; v++) sum[c][r][v] = vf_fma(a, one[v], sum[c][r][v]);
            }
        }
    }
    EW_UNROLL
    for (int r = 0; r < rows; r++)
        EW_UNROLL
        for (int v = 0; v < EW_VECTORS; v++) out[r][v] = sum[0][r][v] + sum[1][r][v];
}

/* The same chains; k is a multiple of four. */
EW_INLINE void ew_sum_fp8(const int rows, const uint8_t *w, int k, const uint8_t *x, size_t stride, vf (*out)[EW_VECTORS], const int prefetch) {
    vf sum[2][EW_MAX_ROWS][EW_VECTORS];
    EW_UNROLL
    for (int r = 0; r < rows; r++)
        EW_UNROLL
        for (int v = 0; v < EW_VECTORS; v++) sum[0][r][v] = sum[1][r][v] = vf_zero();
    for (int i = 0; i < k; i += 4, w += EW_PANEL * 4) {
        EW_UNROLL
        for (int v = 0; v < EW_VECTORS; v++)
            if (prefetch) ew_prefetch(w + EW_PREFETCH + v * EW_LANES * 4);
        EW_UNROLL
        for (int j = 0; j < 4; j++) {
            const int c = j & 1; /* element j is byte 2 * c + j / 2 */
            vf one[EW_VECTORS];
            ew_forget();
            EW_UNROLL
            for (int v = 0; v < EW_VECTORS; v++) one[v] = vf_from_e4m3(vi_load((const int32_t *)w + v * EW_LANES) << (24 - 8 * (2 * c + j / 2)));
            EW_UNROLL
            for (int r = 0; r < rows; r++) {
                const vf a = vf_set1(((const float *)(x + r * stride))[i + j]);
                EW_UNROLL
                for (int v = 0; v < EW_VECTORS; v++) sum[c][r][v] = vf_fma(a, one[v], sum[c][r][v]);
            }
        }
    }
    EW_UNROLL
    for (int r = 0; r < rows; r++)
        EW_UNROLL
        for (int v = 0; v < EW_VECTORS; v++) out[r][v] = sum[0][r][v] + sum[1][r][v];
}

#endif

EW_INLINE void ew_rows_fp8(const int rows, const uint8_t *panel, int k, const uint8_t *x, size_t stride, vf (*out)[EW_VECTORS], const int prefetch) {
    ew_sum_fp8(rows, panel + EW_PANEL * 2, k, x, stride, out, prefetch);
    EW_UNROLL
    for (int v = 0; v < EW_VECTORS; v++) {
        const vf scale = vf_from_bf16((const uint16_t *)panel + v * EW_LANES);
        EW_UNROLL
        for (int r = 0; r < rows; r++) out[r][v] = out[r][v] * scale;
    }
}

/* `rows` rows of a product in `format`, a compile-time constant as `group` and `rows` are. */
EW_INLINE void ew_rows(const int format, const int group, const int rows, const uint8_t *panel, int k, const uint8_t *x, size_t stride, vf (*out)[EW_VECTORS], const int prefetch) {
    if (format == EW_F32) ew_rows_f32(rows, panel, k, x, stride, out, prefetch);
    if (format == EW_BF16) ew_rows_bf16(rows, panel, k, x, stride, out, prefetch);
    if (format == EW_Q8) ew_rows_q8(group, rows, panel, k, x, stride, out, prefetch);
    if (format == EW_Q4) ew_rows_q4(group, rows, panel, k, x, stride, out, prefetch);
    if (format == EW_FP8) ew_rows_fp8(rows, panel, k, x, stride, out, prefetch);
}

#endif
