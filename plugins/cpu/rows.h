/* Operations on one row at a time: embedding, norm, quantization, rotation, elementwise. Strides are in bytes. */
#ifndef EW_ROWS_H
#define EW_ROWS_H

#include "gemm.h"

#define EW_ROW(type, base, stride, row) ((type *)((base) + (size_t)(row) * (stride)))

/* What RMS norm multiplies a run of `width` floats by (arXiv:1910.07467). Squares are summed in EW_LANES chains,
 * then over lanes, then the rest one by one. */
EW_INLINE float ew_rms_scale(const float *x, int width, float eps) {
    vf squares = vf_zero();
    int i = 0;
    for (; i + EW_LANES <= width; i += EW_LANES) {
        vf v = vf_load(x + i);
        squares = vf_fma(v, v, squares);
    }
    float total = vf_sum(squares);
    for (; i < width; i++) total += x[i] * x[i];
    return 1.0f / __builtin_sqrtf(total / (float)width + eps);
}

/* RMS norm of each run of `width` floats; `n` floats in all, `width` a multiple of 4. */
EW_INLINE void ew_rms_norm_row(const float *x, float *y, const float *weight, int n, int width, float eps) {
    for (int start = 0; start < n; start += width) {
        const float scale = ew_rms_scale(x + start, width, eps);
        int i = 0;
        for (; i + EW_LANES <= width; i += EW_LANES) vf_store(y + start + i, vf_load(x + start + i) * scale * vf_load(weight + i));
        for (; i < width; i++) y[start + i] = x[start + i] * scale * weight[i];
    }
}
EW_NOINLINE __attribute__((unused)) void ew_rms_norm(const uint8_t *x, size_t x_stride, uint8_t *y, size_t y_stride, const float *weight, int n, int width, float eps, int first, int last) {
    for (int r = first; r < last; r++) ew_rms_norm_row(EW_ROW(const float, x, x_stride, r), EW_ROW(float, y, y_stride, r), weight, n, width, eps);
}

/* Both at once, over one run of `n` floats: the same numbers, without a row of floats in between. */
EW_INLINE void ew_rms_norm_quantize_row(const int group, const int rotation, const float *x, const float *weight, float eps, uint8_t *y, int n, int k) {
    const float scale = ew_rms_scale(x, n, eps);
    for (int g = 0; g < k / group; g++) {
        vf v[EW_MAX_GROUP / EW_LANES]; /* as many as the group has are used */
        const float *from = x + g * group, *by = weight + g * group;
        if ((g + 1) * group <= n) {
            EW_UNROLL
            for (int i = 0; i < group / EW_LANES; i++) v[i] = vf_load(from + i * EW_LANES) * scale * vf_load(by + i * EW_LANES);
        } else {
            float padded[EW_MAX_GROUP] EW_ALIGNED;
            for (int i = 0; i < group; i++) padded[i] = g * group + i < n ? from[i] * scale * by[i] : 0.0f;
            EW_UNROLL
            for (int i = 0; i < group / EW_LANES; i++) v[i] = vf_load(padded + i * EW_LANES);
        }
        ew_quantize_group(group, rotation, v, y, k, g);
    }
}
#define EW_DEFINE_QUANTIZE(NAME, GROUP, ROTATION)                                                \
    EW_NOINLINE __attribute__((unused)) void ew_quantize_##NAME(const uint8_t *x, size_t x_stride, uint8_t *y, size_t y_stride, int n, int k, int first, int last) { \
        for (int r = first; r < last; r++) ew_quantize_row(GROUP, ROTATION, EW_ROW(const float, x, x_stride, r), EW_ROW(uint8_t, y, y_stride, r), n, k); \
    }                                                                                            \
    EW_NOINLINE __attribute__((unused)) void ew_rms_norm_quantize_##NAME(const uint8_t *x, size_t x_stride, uint8_t *y, size_t y_stride, const float *weight, float eps, int n, int k, int first, int last) { \
        for (int r = first; r < last; r++) ew_rms_norm_quantize_row(GROUP, ROTATION, EW_ROW(const float, x, x_stride, r), weight, eps, EW_ROW(uint8_t, y, y_stride, r), n, k); \
    }

/* Rotates pairs (i, i + half) of each head by its position's angle (arXiv:2104.09864, half-split form).
 * A table row holds `half` cosines, then `half` sines. */
EW_NOINLINE __attribute__((unused)) void ew_rope(const uint8_t *x, size_t x_stride, uint8_t *y, size_t y_stride, const float *table, size_t table_floats, const int32_t *positions, int heads, int head_dim, int first, int last) {
    const int half = head_dim / 2;
    for (int r = first; r < last; r++) {
        const float *cosine = table + (size_t)positions[r] * table_floats, *sine = cosine + half;
        for (int h = 0; h < heads; h++) {
            const float *a = EW_ROW(const float, x, x_stride, r) + h * head_dim, *b = a + half;
            float *c = EW_ROW(float, y, y_stride, r) + h * head_dim, *d = c + half;
            int i = 0;
            for (; i + EW_LANES <= half; i += EW_LANES) {
                vf u = vf_load(a + i), v = vf_load(b + i), cs = vf_load(cosine + i), sn = vf_load(sine + i);
                vf_store(c + i, u * cs - v * sn);
                vf_store(d + i, v * cs + u * sn);
            }
            for (; i < half; i++) {
                float u = a[i], v = b[i];
                c[i] = u * cosine[i] - v * sine[i];
                d[i] = v * cosine[i] + u * sine[i];
            }
        }
    }
}

enum { EW_ADD, EW_MUL, EW_SILU, EW_SILU_MUL };
/* y = a + b, a * b, silu(a) or silu(a) * b, `n` floats a row, padded to whole vectors by the arena. */
EW_NOINLINE __attribute__((unused)) void ew_elementwise(int kind, const uint8_t *a, size_t a_stride, const uint8_t *b, size_t b_stride, uint8_t *y, size_t y_stride, int n, int first, int last) {
    for (int r = first; r < last; r++)
        for (int i = 0; i < n; i += EW_LANES) {
            vf u = vf_load(EW_ROW(const float, a, a_stride, r) + i);
            vf v = kind == EW_SILU ? u : vf_load(EW_ROW(const float, b, b_stride, r) + i);
            vf_store(EW_ROW(float, y, y_stride, r) + i, kind == EW_ADD ? u + v : kind == EW_MUL ? u * v : kind == EW_SILU ? vf_silu(u) : vf_silu(u) * v);
        }
}

EW_NOINLINE __attribute__((unused)) void ew_copy_rows(const uint8_t *x, size_t x_stride, uint8_t *y, size_t y_stride, const int32_t *rows, size_t bytes, int first, int last) {
    for (int r = first; r < last; r++) memcpy(y + (size_t)r * y_stride, x + (size_t)rows[r] * x_stride, bytes);
}

EW_NOINLINE __attribute__((unused)) void ew_move_rows(const uint8_t *x, size_t x_stride, uint8_t *y, size_t y_stride, size_t bytes, int first, int last) {
    for (int r = first; r < last; r++) memcpy(y + (size_t)r * y_stride, x + (size_t)r * x_stride, bytes);
}

/* Embedding rows out of a head's packed panels: a table shared with the head is stored once. int8 rows are
 * rotated back. */
EW_NOINLINE __attribute__((unused)) void ew_embed_q8(const uint8_t *panels, size_t panel_bytes, int group, const int32_t *ids, uint8_t *y, size_t y_stride, int n, int first, int last) {
    for (int r = first; r < last; r++) {
        const int column = ids[r] % EW_PANEL;
        const uint8_t *panel = panels + (size_t)(ids[r] / EW_PANEL) * panel_bytes;
        float *out = EW_ROW(float, y, y_stride, r);
        for (int at = 0; at < n; at += EW_ROTATED) {
            const uint8_t *start = panel + (size_t)(at / group) * EW_Q8_GROUP_BYTES(group);
            const uint8_t *bytes = start + EW_PANEL * 2 + (size_t)(at % group) * EW_PANEL + column * 4;
            const float scale = ew_bf16_to_f32(((const uint16_t *)start)[column]) * EW_UNTURN;
            float part[EW_ROTATED] EW_ALIGNED;
            for (int i = 0; i < EW_ROTATED; i++) part[i] = (float)(int8_t)(bytes[i / 4 * EW_PANEL * 4 + i % 4] - EW_OFFSET) * scale;
            vf v[EW_ROTATED / EW_LANES];
            EW_UNROLL
            for (int i = 0; i < EW_ROTATED / EW_LANES; i++) v[i] = vf_load(part + i * EW_LANES);
            ew_hadamard(v, EW_ROTATED);
            EW_UNROLL
            for (int i = 0; i < EW_ROTATED / EW_LANES; i++) vf_store(part + i * EW_LANES, v[i]);
            memcpy(out + at, part, (size_t)(n - at < EW_ROTATED ? n - at : EW_ROTATED) * 4);
        }
    }
}
EW_NOINLINE __attribute__((unused)) void ew_embed_f32(const uint8_t *panels, size_t panel_bytes, const int32_t *ids, uint8_t *y, size_t y_stride, int n, int first, int last) {
    for (int r = first; r < last; r++) {
        const float *column = (const float *)(panels + (size_t)(ids[r] / EW_PANEL) * panel_bytes) + ids[r] % EW_PANEL;
        for (int i = 0; i < n; i++) EW_ROW(float, y, y_stride, r)[i] = column[(size_t)i * EW_PANEL];
    }
}
EW_NOINLINE __attribute__((unused)) void ew_embed_bf16(const uint8_t *panels, size_t panel_bytes, const int32_t *ids, uint8_t *y, size_t y_stride, int n, int first, int last) {
    for (int r = first; r < last; r++) {
        const uint16_t *column = (const uint16_t *)(panels + (size_t)(ids[r] / EW_PANEL) * panel_bytes) + ids[r] % EW_PANEL * 2;
        for (int i = 0; i < n; i++) EW_ROW(float, y, y_stride, r)[i] = ew_bf16_to_f32(column[(size_t)(i / 2) * EW_PANEL * 2 + i % 2]);
    }
}
/* Tables of their own lie row by row. */
EW_NOINLINE __attribute__((unused)) void ew_embed_rows_f32(const uint8_t *table, size_t stride, const int32_t *ids, uint8_t *y, size_t y_stride, int n, int first, int last) {
    for (int r = first; r < last; r++) memcpy(y + (size_t)r * y_stride, table + (size_t)ids[r] * stride, (size_t)n * 4);
}
EW_NOINLINE __attribute__((unused)) void ew_embed_rows_bf16(const uint8_t *table, size_t stride, const int32_t *ids, uint8_t *y, size_t y_stride, int n, int first, int last) {
    for (int r = first; r < last; r++) {
        const uint16_t *row = (const uint16_t *)(table + (size_t)ids[r] * stride);
        for (int i = 0; i < n; i++) EW_ROW(float, y, y_stride, r)[i] = ew_bf16_to_f32(row[i]);
    }
}

#endif
