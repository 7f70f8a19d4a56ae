/* Rounding of activations to int8, in groups. */
#ifndef EW_QUANTIZE_H
#define EW_QUANTIZE_H

#include "hadamard.h"

#define EW_MAX_GROUP 256
#define EW_UNTURN 0.125f /* 1 / sqrt(EW_ROTATED), which scales a rotation */

/* int8 by one inverse, 127 over the largest of `vectors` vectors, which is returned; `sum` is that of the bytes. With
 * a NaN or an infinity among them `broken` is NaN and the bytes are zeros; else it is 0. */
EW_INLINE float ew_round_int8(const int vectors, const vf *v, int8_t *q, int32_t *sum, float *broken) {
    vf most = vf_zero(), check = vf_zero();
    EW_UNROLL
    for (int i = 0; i < vectors; i++) {
        most = vf_max(most, vf_abs(v[i]));
        check += v[i] * 0.0f;
    }
    const float high = vf_maximum(most), inverse = high > 0 ? 127.0f / high : 0.0f;
    vi total = vi_set1(0);
    EW_UNROLL
    for (int i = 0; i < vectors; i++) {
        vi rounded = vi_from_vf(v[i] * inverse);
        total += rounded;
        vi_store_bytes(q + i * EW_LANES, rounded);
    }
    *sum = vi_sum(total);
    *broken = vf_sum(check);
    if (*broken != *broken) { /* whatever a conversion makes of a NaN */
        memset(q, 0, (size_t)vectors * EW_LANES);
        *sum = 0;
    }
    return high;
}

/* One group of a row of int8 activations (product.h has the row's layout), `v` its values: rotated if the weights
 * are, scale = max|x| / 127, q = round(x / scale). A group that holds a NaN or an infinity gets a scale of NaN, so
 * that a broken row shows in its own logits instead of turning into finite nonsense. */
EW_INLINE void ew_quantize_group(const int group, const int rotation, vf *v, uint8_t *y, int k, int g) {
    const int groups = k / group;
    if (rotation)
        EW_UNROLL
        for (int i = 0; i < group / EW_LANES; i += EW_ROTATED / EW_LANES) ew_hadamard(v + i, rotation);
    int32_t total;
    float broken;
    const float high = ew_round_int8(group / EW_LANES, v, (int8_t *)y + g * group, &total, &broken);
    const float scale = (rotation ? high * EW_UNTURN : high) / 127.0f + broken;
    memcpy(y + k + 4 * g, &scale, 4);
    const int32_t offset = -EW_OFFSET * total;
    const float scaled = (float)total * scale;
    if (rotation) memcpy(y + k + 4 * (groups + g), &offset, 4);
    else memcpy(y + k + 4 * (groups + g), &scaled, 4);
}

/* The same from memory, where the group's first `n` floats are; the others are zeros. */
EW_INLINE void ew_quantize_part(const int group, const int rotation, const float *x, int n, uint8_t *y, int k, int g) {
    vf v[EW_MAX_GROUP / EW_LANES]; /* as many as the group has are used */
    float padded[EW_MAX_GROUP] EW_ALIGNED;
    if (n < group) {
        memset(padded, 0, sizeof padded);
        memcpy(padded, x, (size_t)n * 4);
        x = padded;
    }
    EW_UNROLL
    for (int i = 0; i < group / EW_LANES; i++) v[i] = vf_load(x + i * EW_LANES);
    ew_quantize_group(group, rotation, v, y, k, g);
}

/* A row of `n` floats; `k` is padded to whole groups. */
EW_INLINE void ew_quantize_row(const int group, const int rotation, const float *x, uint8_t *y, int n, int k) {
    for (int g = 0; g < k / group; g++) ew_quantize_part(group, rotation, x + g * group, n - g * group, y, k, g);
}

#endif
