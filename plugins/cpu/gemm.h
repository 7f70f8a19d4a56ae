/* Matrix products: the panels of a weight one after the other, the rows of activations in blocks, and what
 * becomes of the sums: stored, gated, added to a residual, or searched for the highest logit.
 */
#ifndef EW_GEMM_H
#define EW_GEMM_H

#include "amx.h"
#include "product.h"
#include "quantize.h"
#include "top.h"

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
    int out_panel;               /* the panel that `out` begins with */
    int block_rows;              /* rows that are multiplied at once: 1 to EW_MAX_ROWS */
    int ahead;                   /* the first block prefetches the panel */
} ew_product;

EW_INLINE void ew_epilogue(const int rows, const int kind, const ew_product *m, int panel, int row, vf (*y)[EW_VECTORS]) {
    EW_UNROLL
    for (int r = 0; r < rows; r++) {
        if (m->bias)
            EW_UNROLL
            for (int v = 0; v < EW_VECTORS; v++) y[r][v] += vf_load(m->bias + panel * EW_PANEL + v * EW_LANES);
        if (kind == EW_SWIGLU) {
            float *out = (float *)(m->out + (size_t)(row + r) * m->out_stride) + (panel - m->out_panel) * (EW_PANEL / 2);
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

/* Rows that fill AMX tiles go there, 32 or 16 at a time, and all rows if weights are bf16; the rest is cut into equal
 * blocks of at most `block_rows`. A panel is read once for all of them. */
#if defined(EW_HAS_AMX)
#define EW_TILED(m, FORMAT) (!(m)->tiles ? 0 : FORMAT == EW_Q8 ? (m)->rows / 16 * 16 : FORMAT == EW_BF16 ? (m)->rows : 0)
#define EW_CONFIGURE_TILES() ew_amx_configure(16, 16)
#define EW_TILED_ROWS(FORMAT, GROUP, THEN)                                                                    \
    for (int at = 0; at < tiled; at += EW_AMX_SPAN) {                                            \
        float sum[EW_AMX_SPAN][EW_PANEL] EW_ALIGNED;                                             \
        const int span = tiled - at < EW_AMX_SPAN ? tiled - at : EW_AMX_SPAN;                    \
        const uint8_t *x = m->x + (size_t)at * m->x_stride;                                      \
        if (FORMAT == EW_BF16) ew_amx_panel_bf16(panel, m->k, x, m->x_stride, span, sum);        \
        else ew_amx_panel(GROUP, panel, m->k, x, m->x_stride, span, sum);                        \
        for (int r = 0; r < span; r++) {                                                         \
            const int row = at + r;                                                              \
            vf y[1][EW_VECTORS];                                                                 \
            for (int v = 0; v < EW_VECTORS; v++) y[0][v] = vf_load(sum[r] + v * EW_LANES);       \
            THEN(1);                                                                             \
        }                                                                                        \
    }
#else
#define EW_TILED(m, FORMAT) 0
#define EW_CONFIGURE_TILES() (void)0
#define EW_TILED_ROWS(FORMAT, GROUP, THEN)
#endif
#define EW_BLOCK_CASE(N, FORMAT, GROUP, THEN)                                                           \
    case N: {                                                                                    \
        vf y[N][EW_VECTORS];                                                                     \
        if (widens) ew_rows_fp8(N, panel, wide, m->k, x, m->x_stride, y, 0); \
        else if (b == 0 && m->ahead) ew_rows(FORMAT, GROUP, N, panel, m->k, x, m->x_stride, y, 1);    \
        else ew_rows(FORMAT, GROUP, N, panel, m->k, x, m->x_stride, y, 0);                       \
        THEN(N);                                                                                 \
        break;                                                                                   \
    }
#if EW_MAX_ROWS == 6
#define EW_BLOCK_CASES(F, G, T) EW_BLOCK_CASE(1, F, G, T) EW_BLOCK_CASE(2, F, G, T) EW_BLOCK_CASE(3, F, G, T) EW_BLOCK_CASE(4, F, G, T) EW_BLOCK_CASE(5, F, G, T) EW_BLOCK_CASE(6, F, G, T)
#elif EW_MAX_ROWS == 4
#define EW_BLOCK_CASES(F, G, T) EW_BLOCK_CASE(1, F, G, T) EW_BLOCK_CASE(2, F, G, T) EW_BLOCK_CASE(3, F, G, T) EW_BLOCK_CASE(4, F, G, T)
#elif EW_MAX_ROWS == 3
#define EW_BLOCK_CASES(F, G, T) EW_BLOCK_CASE(1, F, G, T) EW_BLOCK_CASE(2, F, G, T) EW_BLOCK_CASE(3, F, G, T)
#else
#define EW_BLOCK_CASES(F, G, T) EW_BLOCK_CASE(1, F, G, T) EW_BLOCK_CASE(2, F, G, T)
#endif
/* Where more rows than a block has meet fp8 weights, a panel is decoded once for all of them. */
#define EW_FOR_BLOCKS(FORMAT, GROUP, THEN)                                                            \
    uint8_t wide[FORMAT == EW_FP8 ? EW_WIDE_BYTES : 1] EW_ALIGNED;                               \
    const int widens = FORMAT == EW_FP8 && EW_WIDENS(m->rows, m->k);                             \
    const int limit = widens ? EW_BLOCK_ROWS(EW_F32) : EW_BLOCK_ROWS(FORMAT), most = m->block_rows < limit ? m->block_rows : limit; \
    const int tiled = EW_TILED(m, FORMAT), blocks = (m->rows - tiled + most - 1) / most;         \
    if (tiled) EW_CONFIGURE_TILES();                                                             \
    for (int p = m->first_panel; p < m->last_panel; p++) {                                       \
        const uint8_t *panel = m->panels + (size_t)p * m->panel_bytes;                           \
        if (widens) ew_widen(panel, m->k, wide);                                                 \
        EW_TILED_ROWS(FORMAT, GROUP, THEN)                                                                      \
        for (int b = 0, row = tiled; b < blocks; b++) {                                          \
            const int rows = (m->rows - row + blocks - b - 1) / (blocks - b);                    \
            const uint8_t *x = m->x + (size_t)row * m->x_stride;                                 \
            switch (rows) { EW_BLOCK_CASES(FORMAT, GROUP, THEN) default: break; }                       \
            row += rows;                                                                         \
        }                                                                                        \
    }
#define EW_THEN_STORE(N) ew_epilogue(N, EW_STORE, m, p, row, y)
#define EW_THEN_SWIGLU(N) ew_epilogue(N, EW_SWIGLU, m, p, row, y)
#define EW_DEFINE_GEMM(NAME, FORMAT, GROUP)                                                      \
    EW_NOINLINE __attribute__((unused)) void ew_gemm_##NAME(const ew_product *m) { EW_FOR_BLOCKS(FORMAT, GROUP, EW_THEN_STORE) } \
    EW_NOINLINE __attribute__((unused)) void ew_gemm_swiglu_##NAME(const ew_product *m) { EW_FOR_BLOCKS(FORMAT, GROUP, EW_THEN_SWIGLU) }

/* The gated product, rounded to int8 for the product that reads it: a group's columns are computed into `scratch`,
 * [EW_GROUP_ROWS][OUT_GROUP] floats, which stays in the cache, and rounded from there. This part's panels are whole groups.
 * `y` has rows of `n` values, padded to `k`. */
#define EW_GROUP_ROWS 96
#define EW_DEFINE_GEMM_QUANTIZE(NAME, FORMAT, GROUP, OUT_GROUP, ROTATION)                        \
    EW_NOINLINE void ew_gemm_quantize_##NAME##_##OUT_GROUP##_##ROTATION(const ew_product *m, uint8_t *y, size_t y_stride, int k, float *scratch) { \
        const int panels = OUT_GROUP / (EW_PANEL / 2);                                           \
        for (int first = m->first_panel; first < m->last_panel; first += panels)                 \
            for (int at = 0; at < m->rows; at += EW_GROUP_ROWS) {                                \
                ew_product part = *m;                                                            \
                part.first_panel = part.out_panel = first;                                       \
                part.last_panel = first + panels < m->last_panel ? first + panels : m->last_panel; \
                part.rows = m->rows - at < EW_GROUP_ROWS ? m->rows - at : EW_GROUP_ROWS;         \
                part.x = m->x + (size_t)at * m->x_stride;                                        \
                part.out = (uint8_t *)scratch;                                                   \
                part.out_stride = OUT_GROUP * 4;                                                 \
                ew_gemm_swiglu_##NAME(&part);                                                    \
                const int n = (part.last_panel - first) * (EW_PANEL / 2);                        \
                for (int r = 0; r < part.rows; r++) ew_quantize_part(OUT_GROUP, ROTATION, scratch + r * OUT_GROUP, n, y + (size_t)(at + r) * y_stride, k, first / panels); \
            }                                                                                    \
    }

/* The head keeps, for every row, the highest logit of each lane and where it was, and as many of the highest as the
 * row's sampling can choose from; logits are stored only for the rows that something else will read. The lowest id
 * wins among equals. */
#define EW_HEAD_TOP 64 /* most that it keeps */
#define EW_HEAD_ALL 255 /* in `wanted`, in place of how many: all are stored */
typedef struct {
    float best[EW_LANES] EW_ALIGNED;
    int32_t id[EW_LANES] EW_ALIGNED;
    ew_top_list top;
    ew_candidate items[EW_HEAD_TOP];
} ew_best;

EW_INLINE void ew_head_rows(const int rows, const ew_product *m, int panel, int row, vf (*y)[EW_VECTORS], ew_best *best, const uint8_t *wanted, int vocab) {
    EW_UNROLL
    for (int r = 0; r < rows; r++) {
        ew_best *mine = best + row + r;
        EW_UNROLL
        for (int v = 0; v < EW_VECTORS; v++) {
            const int column = panel * EW_PANEL + v * EW_LANES;
            if (m->bias) y[r][v] += vf_load(m->bias + column);
            if (wanted[row + r] == EW_HEAD_ALL) vf_store((float *)(m->out + (size_t)(row + r) * m->out_stride) + column, y[r][v]);
            else if (wanted[row + r]) ew_top_take(&mine->top, y[r][v], column, vocab);
            vi ids = vi_lanes() + column, more = vf_gt(y[r][v], vf_load(mine->best)) & (ids < vocab);
            if (vi_any(more)) {
                vf_store(mine->best, vf_select(more, y[r][v], vf_load(mine->best)));
                vi_store(mine->id, vi_select(more, ids, vi_load(mine->id)));
            }
        }
    }
}
#define EW_THEN_HEAD(N) ew_head_rows(N, m, p, row, y, best, wanted, vocab)
#define EW_DEFINE_HEAD(NAME, FORMAT, GROUP)                                                                 \
    EW_NOINLINE __attribute__((unused)) void ew_head_##NAME(const ew_product *m, ew_best *best, const uint8_t *wanted, int vocab) { \
        for (int r = 0; r < m->rows; r++) {                                                      \
            vf_store(best[r].best, vf_set1(-__builtin_inff()));                                  \
            vi_store(best[r].id, vi_set1(0x7fffffff));                                           \
            best[r].top = (ew_top_list){wanted[r], 0, best[r].items};                            \
        }                                                                                        \
        EW_FOR_BLOCKS(FORMAT, GROUP, EW_THEN_HEAD)                                                      \
    }

#endif
