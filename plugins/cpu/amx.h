/* int8 and bf16 products on AMX tiles: up to 32 rows by one panel, the same sums as the kernels in product.h.
 *
 * A tile multiplication gives a group's integer dot products of 16 rows and 16 columns at once. They are
 * exact, and the scales are applied to them by the same float operations in the same order, so the
 * results have the same bits as those of the vector kernel; rows that fill no tile are left to it.
 * bf16 is summed by tiles in an order of their own, so all rows go there, the last ones on tiles of fewer rows.
 */
#ifndef EW_AMX_H
#define EW_AMX_H

#include "product.h"

#if defined(EW_HAS_AMX)

#include <sys/syscall.h>
#include <unistd.h>

#define EW_AMX_ROWS 32   /* of activations, in a block */
#define EW_AMX_SPAN 96   /* of activations, that one reading of a panel serves */
#define EW_AMX_K 1024    /* of a panel, that is made signed at a time */
#define EW_AMX_STEP 64   /* elements along k in one tile multiplication */

/* Asks the kernel, once a process, for the tile registers; 0 when they may be used. */
__attribute__((unused)) static int ew_amx_request(void) { return (int)syscall(SYS_arch_prctl, 0x1023 /* ARCH_REQ_XCOMP_PERM */, 18 /* XTILEDATA */); }

/* Tiles 0, 1: sums of `first` rows, 16 columns each. Tiles 2, 3: of `second` rows. Tiles 4, 5: activations of the same
 * rows. Tiles 6, 7: weights of 16 columns. */
static void ew_amx_configure(int first, int second) {
    struct { uint8_t palette, start, reserved[14]; uint16_t bytes[16]; uint8_t rows[16]; } EW_ALIGNED c;
    memset(&c, 0, sizeof c);
    c.palette = 1;
    for (int i = 0; i < 8; i++) {
        c.bytes[i] = 64;
        c.rows[i] = i > 5 ? 16 : i < 2 || i == 4 ? first : second;
    }
    _tile_loadconfig(&c);
}

/* Integer dot products of 16 * `tiles` rows with one group of signed weights, [group / 4][EW_PANEL][4]. */
EW_INLINE void ew_amx_dot(const int group, const int tiles, const int8_t *w, const uint8_t *x, size_t stride, int32_t (*dots)[EW_PANEL]) {
    _tile_zero(0);
    _tile_zero(1);
    if (tiles == 2) {
        _tile_zero(2);
        _tile_zero(3);
    }
    for (int at = 0; at < group; at += EW_AMX_STEP, w += EW_AMX_STEP * EW_PANEL) {
        _tile_loadd(4, x + at, stride);
        _tile_loadd(6, w, EW_PANEL * 4);
        _tile_dpbssd(0, 4, 6);
        _tile_loadd(7, w + 64, EW_PANEL * 4);
        _tile_dpbssd(1, 4, 7);
        if (tiles == 2) {
            _tile_loadd(5, x + at + 16 * stride, stride);
            _tile_dpbssd(2, 5, 6);
            _tile_dpbssd(3, 5, 7);
        }
    }
    _tile_stored(0, dots[0], EW_PANEL * 4);
    _tile_stored(1, &dots[0][16], EW_PANEL * 4);
    if (tiles == 2) {
        _tile_stored(2, dots[16], EW_PANEL * 4);
        _tile_stored(3, &dots[16][16], EW_PANEL * 4);
    }
}

/* Adds one group's dot products, scaled, to `rows` rows of `sum`. */
EW_INLINE void ew_amx_scale(int rows, const uint8_t *panel, const uint8_t *scales, size_t stride, const int32_t (*dots)[EW_PANEL], float (*sum)[EW_PANEL]) {
    const vf w0 = vf_from_bf16((const uint16_t *)panel), w1 = vf_from_bf16((const uint16_t *)panel + EW_LANES);
    for (int r = 0; r < rows; r++) {
        float scale;
        memcpy(&scale, scales + r * stride, 4);
        vf_store(sum[r], vf_fma(vf_from_vi(vi_load(dots[r])), w0 * scale, vf_load(sum[r])));
        vf_store(sum[r] + EW_LANES, vf_fma(vf_from_vi(vi_load(dots[r] + EW_LANES)), w1 * scale, vf_load(sum[r] + EW_LANES)));
    }
}

/* Adds the products of 16 * `tiles` rows with `groups` groups of a panel to `sum`. `w` are the groups' signed
 * weights, `panel` the groups themselves, `x` and `scales` the first row's values and scales at the first group. */
EW_INLINE void ew_amx_rows(const int group, const int tiles, int groups, const int8_t *w, const uint8_t *panel, const uint8_t *x, const uint8_t *scales, size_t stride, float (*sum)[EW_PANEL]) {
    int32_t dots[2][EW_AMX_ROWS][EW_PANEL] EW_ALIGNED; /* one group's are computed while the last one's are scaled */
    for (int g = 0; g < groups; g++) {
        ew_amx_dot(group, tiles, w + (size_t)g * EW_PANEL * group, x + g * group, stride, dots[g & 1]);
        if (g) ew_amx_scale(16 * tiles, panel + (g - 1) * EW_Q8_GROUP_BYTES(group), scales + 4 * (g - 1), stride, (const int32_t (*)[EW_PANEL])dots[(g - 1) & 1], sum);
    }
    ew_amx_scale(16 * tiles, panel + (groups - 1) * EW_Q8_GROUP_BYTES(group), scales + 4 * (groups - 1), stride, (const int32_t (*)[EW_PANEL])dots[(groups - 1) & 1], sum);
}

/* Weights are stored as w + EW_OFFSET; tiles take them signed. */
EW_INLINE void ew_amx_signed(const int group, const uint8_t *panel, int groups, int8_t *w) {
    const vi flip = vi_set1((int32_t)0x80808080);
    for (int g = 0; g < groups; g++)
        for (int i = 0; i < EW_PANEL * group; i += EW_LANES * 4)
            vi_store((int32_t *)(w + (size_t)g * EW_PANEL * group + i), vi_load((const int32_t *)(panel + g * EW_Q8_GROUP_BYTES(group) + EW_PANEL * 2 + i)) ^ flip);
}

/* One panel times `rows` rows (a multiple of 16, at most EW_AMX_SPAN), into `sum`. Long rows are cut into
 * pieces of at most EW_AMX_K, so that the signed weights of a piece stay in the first-level cache. */
EW_INLINE void ew_amx_panel(const int group, const uint8_t *panel, int k, const uint8_t *x, size_t stride, int rows, float (*sum)[EW_PANEL]) {
    int8_t w[EW_PANEL * EW_AMX_K] EW_ALIGNED;
    memset(sum, 0, sizeof sum[0] * rows);
    const int all = k / group, most = EW_AMX_K / group;
    for (int first = 0; first < all; first += most) {
        const int groups = all - first < most ? all - first : most;
        const uint8_t *part = panel + first * EW_Q8_GROUP_BYTES(group);
        ew_amx_signed(group, part, groups, w);
        for (int r = 0; r < rows; r += EW_AMX_ROWS) {
            const uint8_t *a = x + (size_t)r * stride + first * group, *scales = x + (size_t)r * stride + k + 4 * first;
            if (rows - r >= EW_AMX_ROWS) ew_amx_rows(group, 2, groups, w, part, a, scales, stride, sum + r);
            else ew_amx_rows(group, 1, groups, w, part, a, scales, stride, sum + r);
        }
    }
}

/* Products of one tile of rows, or two, with a panel of bf16 weights. */
EW_INLINE void ew_amx_rows_bf16(const int tiles, const uint8_t *panel, int k, const uint8_t *x, size_t stride, float (*sum)[EW_PANEL]) {
    _tile_zero(0);
    _tile_zero(1);
    if (tiles == 2) {
        _tile_zero(2);
        _tile_zero(3);
    }
    for (int i = 0; i < k; i += EW_DOT_STEP, panel += EW_DOT_STEP * EW_PANEL * 2) {
        _tile_loadd(4, x + 2 * i, stride);
        _tile_loadd(6, panel, EW_PANEL * 4);
        _tile_dpbf16ps(0, 4, 6);
        _tile_loadd(7, panel + 64, EW_PANEL * 4);
        _tile_dpbf16ps(1, 4, 7);
        if (tiles == 2) {
            _tile_loadd(5, x + 2 * i + 16 * stride, stride);
            _tile_dpbf16ps(2, 5, 6);
            _tile_dpbf16ps(3, 5, 7);
        }
    }
    _tile_stored(0, sum[0], EW_PANEL * 4);
    _tile_stored(1, &sum[0][16], EW_PANEL * 4);
    if (tiles == 2) {
        _tile_stored(2, sum[16], EW_PANEL * 4);
        _tile_stored(3, &sum[16][16], EW_PANEL * 4);
    }
}

/* One panel of bf16 weights times `rows` rows, into `sum`. */
EW_INLINE void ew_amx_panel_bf16(const uint8_t *panel, int k, const uint8_t *x, size_t stride, int rows, float (*sum)[EW_PANEL]) {
    for (int r = 0; r < rows; r += EW_AMX_ROWS) {
        const int left = rows - r;
        ew_amx_configure(left < 16 ? left : 16, left < 17 ? 16 : left < 32 ? left - 16 : 16);
        if (left > 16) ew_amx_rows_bf16(2, panel, k, x + (size_t)r * stride, stride, sum + r);
        else ew_amx_rows_bf16(1, panel, k, x + (size_t)r * stride, stride, sum + r);
    }
}

#endif
#endif
