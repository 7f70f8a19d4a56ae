/* Products of rows of floats, or of bf16 where the processor multiplies it, with f32, bf16 and fp8 weights. */
#ifndef EW_PRODUCT_FLOAT_H
#define EW_PRODUCT_FLOAT_H

#include "panels.h"

/* Adds the products of element `i` of each row. */
EW_INLINE void ew_add_f32(const int rows, const uint8_t *panel, int i, const uint8_t *x, size_t stride, vf (*sum)[EW_VECTORS], const int prefetch) {
    const float *w = (const float *)panel + (size_t)i * EW_PANEL;
    EW_UNROLL
    for (int v = 0; v < EW_VECTORS; v++)
        if (prefetch) ew_prefetch((const uint8_t *)(w + v * EW_LANES) + EW_PREFETCH);
    EW_UNROLL
    for (int r = 0; r < rows; r++) {
        const vf a = vf_set1(((const float *)(x + r * stride))[i]);
        EW_UNROLL
        for (int v = 0; v < EW_VECTORS; v++) sum[r][v] = vf_fma(a, vf_load(w + v * EW_LANES), sum[r][v]);
    }
}
/* In one chain of sums, or in two, of even and of odd k, added at the end. */
EW_INLINE void ew_chains_f32(const int chains, const int rows, const uint8_t *panel, int k, const uint8_t *x, size_t stride, vf (*out)[EW_VECTORS], const int prefetch) {
    vf sum[2][EW_MAX_ROWS][EW_VECTORS];
    EW_UNROLL
    for (int r = 0; r < rows; r++)
        EW_UNROLL
        for (int v = 0; v < EW_VECTORS; v++) sum[0][r][v] = sum[1][r][v] = vf_zero();
    int i = 0;
    for (; i + chains <= k; i += chains)
        EW_UNROLL
        for (int c = 0; c < chains; c++) ew_add_f32(rows, panel, i + c, x, stride, sum[c], prefetch);
    for (; i < k; i++) ew_add_f32(rows, panel, i, x, stride, sum[0], prefetch);
    EW_UNROLL
    for (int r = 0; r < rows; r++)
        EW_UNROLL
        for (int v = 0; v < EW_VECTORS; v++) out[r][v] = chains == 2 ? sum[0][r][v] + sum[1][r][v] : sum[0][r][v];
}
/* The blocks of AVX2 are too small for one chain to hide what an addition takes. */
EW_INLINE void ew_rows_f32(const int rows, const uint8_t *panel, int k, const uint8_t *x, size_t stride, vf (*out)[EW_VECTORS], const int prefetch) {
    ew_chains_f32(EW_LANES == 8 ? 2 : 1, rows, panel, k, x, stride, out, prefetch);
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
        if (prefetch)
            EW_UNROLL
            for (int at = 0; at < 4 * EW_PANEL * (format == EW_BF16 ? 2 : 1); at += EW_LANES * 4) ew_prefetch(ahead + at);
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
EW_INLINE void ew_sum_wide(const int rows, const uint8_t *wide, int k, const uint8_t *x, size_t stride, vf (*out)[EW_VECTORS]) {
    ew_rows_dot(EW_BF16, rows, wide, k, x, stride, out, 0);
}
#define EW_WIDE 2 /* bytes of an element of a panel after ew_widen: bf16 */
EW_INLINE void ew_widen_four(const uint8_t *w, int v, uint8_t *wide) {
    vb pairs[2];
    ew_dot_pairs(EW_FP8, w, 0, v, pairs);
    EW_UNROLL
    for (int i = 0; i < 2; i++) memcpy(wide + (i * EW_PANEL + v * EW_LANES) * 4, &pairs[i], sizeof pairs[i]);
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

#define EW_E4M3_SHIFT(j) (24 - 8 * (2 * ((j) & 1) + (j) / 2)) /* of four, takes element j to the highest byte */
EW_INLINE void ew_sum_wide(const int rows, const uint8_t *wide, int k, const uint8_t *x, size_t stride, vf (*out)[EW_VECTORS]) {
    ew_chains_f32(2, rows, wide, k, x, stride, out, 0);
}
#define EW_WIDE 4 /* bytes of an element of a panel after ew_widen: f32 */
EW_INLINE void ew_widen_four(const uint8_t *w, int v, uint8_t *wide) {
    const vi four = vi_load((const int32_t *)w + v * EW_LANES);
    EW_UNROLL
    for (int j = 0; j < 4; j++) vf_store((float *)wide + j * EW_PANEL + v * EW_LANES, vf_from_e4m3(four << EW_E4M3_SHIFT(j)));
}

/* The same chains as of bf16; k is a multiple of four. */
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
            const int c = j & 1;
            vf one[EW_VECTORS];
            ew_forget();
            EW_UNROLL
            for (int v = 0; v < EW_VECTORS; v++) one[v] = vf_from_e4m3(vi_load((const int32_t *)w + v * EW_LANES) << EW_E4M3_SHIFT(j));
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

/* A panel of fp8 as one of wider numbers, which hold its own exactly. */
#define EW_WIDE_BYTES (256 << 10) /* what may lie in the second-level cache */
#define EW_WIDENS(rows, k) ((rows) > EW_BLOCK_ROWS(EW_FP8) && (size_t)(k) * EW_PANEL * EW_WIDE <= EW_WIDE_BYTES)
EW_INLINE void ew_widen(const uint8_t *panel, int k, uint8_t *wide) {
    const uint8_t *w = panel + EW_PANEL * 2;
    for (int i = 0; i < k; i += 4, w += EW_PANEL * 4, wide += EW_PANEL * 4 * EW_WIDE)
        EW_UNROLL
        for (int v = 0; v < EW_VECTORS; v++) {
            ew_widen_four(w, v, wide);
            ew_prefetch(w + EW_PREFETCH + v * EW_LANES * 4);
        }
}

/* `wide` is the panel after ew_widen, or null: both ways add the same products in the same chains. */
EW_INLINE void ew_rows_fp8(const int rows, const uint8_t *panel, const uint8_t *wide, int k, const uint8_t *x, size_t stride, vf (*out)[EW_VECTORS], const int prefetch) {
    if (wide) ew_sum_wide(rows, wide, k, x, stride, out);
    else ew_sum_fp8(rows, panel + EW_PANEL * 2, k, x, stride, out, prefetch);
    EW_UNROLL
    for (int v = 0; v < EW_VECTORS; v++) {
        const vf scale = vf_from_bf16((const uint16_t *)panel + v * EW_LANES);
        EW_UNROLL
        for (int r = 0; r < rows; r++) out[r][v] = out[r][v] * scale;
    }
}

#endif
