/* Matrix products: packed weight panels times a few rows of activations, one kernel a weight format.
 *
 * An output element is summed over k in ascending order, one group after the other, by the same
 * instructions whatever the number of rows, panels or threads: that is the rule of one result.
 *
 * Panel layouts, EW_PANEL columns wide, k padded with zeros to whole groups (int8) or pairs (bf16):
 *   int8   per group: EW_PANEL bf16 scales, then [EW_GROUP / 4][EW_PANEL][4] bytes of w + EW_OFFSET
 *   bf16   [k / 2][EW_PANEL][2]
 *   f32    [k][EW_PANEL]
 * A row of int8 activations is: k bytes, then a float scale a group, then an int32 a group, which
 * is -EW_OFFSET times the sum of the group's bytes.
 */
#ifndef EW_GEMM_H
#define EW_GEMM_H

#include "amx.h"
#include "isa.h"

#define EW_STEPS (EW_GROUP / 4)
#define EW_Q8_GROUP_BYTES (EW_PANEL * (2 + EW_GROUP))
#define EW_PREFETCH 4096

enum { EW_STORE, EW_SWIGLU };

/* One product as the step sees it. Strides are in bytes; `out`, `residual` and `bias` are floats. */
typedef struct {
    const uint8_t *panels;
    size_t panel_bytes;
    int k;           /* padded as the panel is */
    const float *bias; /* a float a packed column, or null */
    const uint8_t *x;
    size_t x_stride;
    uint8_t *out;
    size_t out_stride;
    const uint8_t *residual; /* or null; may be `out` itself */
    size_t residual_stride;
    int rows;
    int first_panel, last_panel; /* this thread's share */
    int tiles;                   /* AMX tiles may be used */
} ew_product;

EW_INLINE void ew_rows_q8(const int rows, const uint8_t *panel, int k, const uint8_t *x, size_t stride, vf (*out)[EW_VECTORS], const int prefetch) {
    const int groups = k / EW_GROUP, chains = rows == 1 ? 2 : 1;
    EW_UNROLL
    for (int r = 0; r < rows; r++)
        EW_UNROLL
        for (int v = 0; v < EW_VECTORS; v++) out[r][v] = vf_zero();
    for (int g = 0; g < groups; g++) {
        const uint8_t *w = panel + EW_PANEL * 2;
        vi acc[rows * chains][EW_VECTORS];
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
        EW_UNROLL
        for (int s = 0; s < EW_STEPS; s++) {
            vb bytes[EW_VECTORS];
            EW_UNROLL
            for (int v = 0; v < EW_VECTORS; v++) {
                bytes[v] = vb_load(w + (s * EW_VECTORS + v) * EW_LANES * 4);
                if (prefetch) ew_prefetch(w + EW_PREFETCH + (s * EW_VECTORS + v) * EW_LANES * 4);
            }
            EW_UNROLL
            for (int r = 0; r < rows; r++) {
                vb a = vb_set1(x + r * stride + g * EW_GROUP + 4 * s);
                const int c = chains == 2 ? (s & 1) : r;
                EW_UNROLL
                for (int v = 0; v < EW_VECTORS; v++) acc[c][v] = vi_dot(acc[c][v], bytes[v], a);
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
        panel += EW_Q8_GROUP_BYTES;
    }
}

EW_INLINE void ew_rows_f32(const int rows, const uint8_t *panel, int k, const uint8_t *x, size_t stride, vf (*out)[EW_VECTORS], const int prefetch) {
    vf sum[rows][EW_VECTORS];
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
    vf even[rows][EW_VECTORS], odd[rows][EW_VECTORS];
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

EW_INLINE void ew_epilogue(const int rows, const int kind, const ew_product *m, int panel, int row, vf (*y)[EW_VECTORS]) {
    EW_UNROLL
    for (int r = 0; r < rows; r++) {
        if (m->bias)
            EW_UNROLL
            for (int v = 0; v < EW_VECTORS; v++) y[r][v] += vf_load(m->bias + panel * EW_PANEL + v * EW_LANES);
        if (kind == EW_SWIGLU) {
            float *out = (float *)(m->out + (size_t)(row + r) * m->out_stride) + panel * (EW_PANEL / 2);
            EW_UNROLL
            for (int v = 0; v < EW_VECTORS / 2; v++) vf_store(out + v * EW_LANES, vf_silu(y[r][v]) * y[r][v + EW_VECTORS / 2]);
            continue;
        }
        float *out = (float *)(m->out + (size_t)(row + r) * m->out_stride) + panel * EW_PANEL;
        if (m->residual) {
            const float *add = (const float *)(m->residual + (size_t)(row + r) * m->residual_stride) + panel * EW_PANEL;
            EW_UNROLL
            for (int v = 0; v < EW_VECTORS; v++) y[r][v] += vf_load(add + v * EW_LANES);
        }
        EW_UNROLL
        for (int v = 0; v < EW_VECTORS; v++) vf_store(out + v * EW_LANES, y[r][v]);
    }
}

/* Rows that fill AMX tiles go there, 32 or 16 at a time; the rest is cut into equal blocks of at most
 * EW_MAX_ROWS. A panel is read once for all of them. */
#define EW_TILED_f32(m) 0
#define EW_TILED_bf16(m) 0
#if defined(EW_HAS_AMX)
#define EW_TILED_q8(m) ((m)->tiles ? (m)->rows / 16 * 16 : 0)
#define EW_CONFIGURE_TILES() ew_amx_configure()
#define EW_TILED_ROWS(THEN)                                                                      \
    for (int at = 0; at < tiled; at += EW_AMX_SPAN) {                                            \
        float sum[EW_AMX_SPAN][EW_PANEL] EW_ALIGNED;                                             \
        const int span = tiled - at < EW_AMX_SPAN ? tiled - at : EW_AMX_SPAN;                    \
        ew_amx_panel(panel, m->k, m->x + (size_t)at * m->x_stride, m->x_stride, span, sum);      \
        for (int r = 0; r < span; r++) {                                                         \
            const int row = at + r;                                                              \
            vf y[1][EW_VECTORS];                                                                 \
            for (int v = 0; v < EW_VECTORS; v++) y[0][v] = vf_load(sum[r] + v * EW_LANES);       \
            THEN(1);                                                                             \
        }                                                                                        \
    }
#else
#define EW_TILED_q8(m) 0
#define EW_CONFIGURE_TILES() (void)0
#define EW_TILED_ROWS(THEN)
#endif
#define EW_BLOCK_CASE(N, FORMAT, THEN)                                                           \
    case N: {                                                                                    \
        vf y[N][EW_VECTORS];                                                                     \
        if (b == 0) ew_rows_##FORMAT(N, panel, m->k, x, m->x_stride, y, 1);                      \
        else ew_rows_##FORMAT(N, panel, m->k, x, m->x_stride, y, 0);                             \
        THEN(N);                                                                                 \
        break;                                                                                   \
    }
#if EW_MAX_ROWS == 6
#define EW_BLOCK_CASES(F, T) EW_BLOCK_CASE(1, F, T) EW_BLOCK_CASE(2, F, T) EW_BLOCK_CASE(3, F, T) EW_BLOCK_CASE(4, F, T) EW_BLOCK_CASE(5, F, T) EW_BLOCK_CASE(6, F, T)
#elif EW_MAX_ROWS == 3
#define EW_BLOCK_CASES(F, T) EW_BLOCK_CASE(1, F, T) EW_BLOCK_CASE(2, F, T) EW_BLOCK_CASE(3, F, T)
#else
#define EW_BLOCK_CASES(F, T) EW_BLOCK_CASE(1, F, T) EW_BLOCK_CASE(2, F, T)
#endif
#define EW_FOR_BLOCKS(FORMAT, THEN)                                                              \
    const int tiled = EW_TILED_##FORMAT(m), blocks = (m->rows - tiled + EW_MAX_ROWS - 1) / EW_MAX_ROWS; \
    if (tiled) EW_CONFIGURE_TILES();                                                             \
    for (int p = m->first_panel; p < m->last_panel; p++) {                                       \
        const uint8_t *panel = m->panels + (size_t)p * m->panel_bytes;                           \
        EW_TILED_ROWS(THEN)                                                                      \
        for (int b = 0, row = tiled; b < blocks; b++) {                                          \
            const int rows = (m->rows - row + blocks - b - 1) / (blocks - b);                    \
            const uint8_t *x = m->x + (size_t)row * m->x_stride;                                 \
            switch (rows) { EW_BLOCK_CASES(FORMAT, THEN) default: break; }                       \
            row += rows;                                                                         \
        }                                                                                        \
    }
#define EW_THEN_STORE(N) ew_epilogue(N, EW_STORE, m, p, row, y)
#define EW_THEN_SWIGLU(N) ew_epilogue(N, EW_SWIGLU, m, p, row, y)
#define EW_DEFINE_GEMM(FORMAT)                                                                   \
    EW_NOINLINE __attribute__((unused)) void ew_gemm_##FORMAT(const ew_product *m) { EW_FOR_BLOCKS(FORMAT, EW_THEN_STORE) }        \
    EW_NOINLINE __attribute__((unused)) void ew_gemm_swiglu_##FORMAT(const ew_product *m) { EW_FOR_BLOCKS(FORMAT, EW_THEN_SWIGLU) }

/* The head keeps, for every row, the highest logit of each lane and where it was; logits are
 * stored only for the rows that something else will read. The lowest id wins among equals. */
typedef struct {
    float best[EW_LANES] EW_ALIGNED;
    int32_t id[EW_LANES] EW_ALIGNED;
} ew_best;

EW_INLINE void ew_head_rows(const int rows, const ew_product *m, int panel, int row, vf (*y)[EW_VECTORS], ew_best *best, const uint8_t *wanted, int vocab) {
    EW_UNROLL
    for (int r = 0; r < rows; r++) {
        ew_best *mine = best + row + r;
        EW_UNROLL
        for (int v = 0; v < EW_VECTORS; v++) {
            const int column = panel * EW_PANEL + v * EW_LANES;
            if (m->bias) y[r][v] += vf_load(m->bias + column);
            if (wanted[row + r]) vf_store((float *)(m->out + (size_t)(row + r) * m->out_stride) + column, y[r][v]);
            vi ids = vi_lanes() + column, more = vf_gt(y[r][v], vf_load(mine->best)) & (ids < vocab);
            if (vi_any(more)) {
                vf_store(mine->best, vf_select(more, y[r][v], vf_load(mine->best)));
                vi_store(mine->id, vi_select(more, ids, vi_load(mine->id)));
            }
        }
    }
}
#define EW_THEN_HEAD(N) ew_head_rows(N, m, p, row, y, best, wanted, vocab)
#define EW_DEFINE_HEAD(FORMAT)                                                                   \
    EW_NOINLINE __attribute__((unused)) void ew_head_##FORMAT(const ew_product *m, ew_best *best, const uint8_t *wanted, int vocab) { \
        for (int r = 0; r < m->rows; r++) {                                                      \
            vf_store(best[r].best, vf_set1(-__builtin_inff()));                                  \
            vi_store(best[r].id, vi_set1(0x7fffffff));                                           \
        }                                                                                        \
        EW_FOR_BLOCKS(FORMAT, EW_THEN_HEAD)                                                      \
    }

#endif
