/* The kernel headers behind plain functions, so that tests can call one kernel at a time. */
#include "rows.h"
#include "sample.h"

EW_DEFINE_QUANTIZE(128_64, 128, 64)
EW_DEFINE_QUANTIZE(32_0, 32, 0)
EW_DEFINE_GEMM(f32, EW_F32, 0)
EW_DEFINE_GEMM(bf16, EW_BF16, 0)
EW_DEFINE_GEMM(q8, EW_Q8, 128)
EW_DEFINE_GEMM(q4, EW_Q4, 32)
EW_DEFINE_GEMM_QUANTIZE(q8, EW_Q8, 128, 128, 64)
EW_DEFINE_HEAD(f32, EW_F32, 0)

/* What an engine does once when it is opened; 0 when the kernels may be called. */
EW_EXPORT int32_t test_start(void) {
#if defined(EW_HAS_AMX)
    return ew_amx_request();
#else
    return 0;
#endif
}
EW_EXPORT void test_facts(int32_t *out) {
    out[0] = EW_LANES;
    out[1] = EW_PANEL;
    out[2] = EW_OFFSET;
    out[3] = EW_MAX_ROWS;
}
EW_EXPORT void test_gemm(int format, int swiglu, const ew_product *m) {
    if (format == 0 && !swiglu) ew_gemm_f32(m);
    if (format == 0 && swiglu) ew_gemm_swiglu_f32(m);
    if (format == 1 && !swiglu) ew_gemm_bf16(m);
    if (format == 1 && swiglu) ew_gemm_swiglu_bf16(m);
    if (format == 2 && !swiglu) ew_gemm_q8(m);
    if (format == 2 && swiglu) ew_gemm_swiglu_q8(m);
    if (format == 3 && !swiglu) ew_gemm_q4(m);
    if (format == 3 && swiglu) ew_gemm_swiglu_q4(m);
}
EW_EXPORT void test_gemm_quantize(const ew_product *m, uint8_t *y, size_t y_stride, int k) {
    static float scratch[EW_GROUP_ROWS * 128] EW_ALIGNED;
    ew_gemm_quantize_q8_128_64(m, y, y_stride, k, scratch);
}
/* The id of each row's highest logit, or -1. */
EW_EXPORT void test_head(const ew_product *m, const uint8_t *wanted, int vocab, int32_t *ids, int32_t *top) {
    ew_best *best = aligned_alloc(64, (size_t)(m->rows + 1) * sizeof *best);
    ew_head_f32(m, best, wanted, vocab);
    for (int r = 0; r < m->rows; r++) {
        for (int i = 0; top && i < best[r].top.count; i++) top[r * EW_HEAD_TOP + i] = best[r].items[i].id;
        float high = -__builtin_inff();
        ids[r] = -1;
        for (int i = 0; i < EW_LANES; i++)
            if (best[r].best[i] > high || (best[r].best[i] == high && best[r].id[i] < ids[r])) {
                high = best[r].best[i];
                ids[r] = best[r].id[i];
            }
    }
    free(best);
}
EW_EXPORT void test_quantize(const uint8_t *x, size_t x_stride, uint8_t *y, size_t y_stride, int n, int k, int first, int last) {
    ew_quantize_128_64(x, x_stride, y, y_stride, n, k, first, last);
}
EW_EXPORT void test_quantize_plain(const uint8_t *x, size_t x_stride, uint8_t *y, size_t y_stride, int n, int k, int first, int last) {
    ew_quantize_32_0(x, x_stride, y, y_stride, n, k, first, last);
}
EW_EXPORT void test_rms_norm_quantize(const uint8_t *x, size_t x_stride, uint8_t *y, size_t y_stride, const float *weight, float eps, int n, int k, int first, int last) {
    ew_rms_norm_quantize_128_64(x, x_stride, y, y_stride, weight, eps, n, k, first, last);
}
EW_EXPORT void test_rms_norm(const uint8_t *x, size_t x_stride, uint8_t *y, size_t y_stride, const float *weight, int n, int width, float eps, int first, int last) {
    ew_rms_norm(x, x_stride, y, y_stride, weight, n, width, eps, first, last);
}
EW_EXPORT void test_rope(const uint8_t *x, size_t x_stride, uint8_t *y, size_t y_stride, const float *table, size_t table_floats, const int32_t *positions, int heads, int head_dim, int first, int last) {
    ew_rope(x, x_stride, y, y_stride, table, table_floats, positions, heads, head_dim, first, last);
}
EW_EXPORT void test_elementwise(int kind, const uint8_t *a, size_t a_stride, const uint8_t *b, size_t b_stride, uint8_t *y, size_t y_stride, int n, int first, int last) {
    ew_elementwise(kind, a, a_stride, b, b_stride, y, y_stride, n, first, last);
}
EW_EXPORT void test_exp2(const float *x, float *y, int count) {
    for (int i = 0; i < count; i++) y[i] = vf_exp2(vf_set1(x[i]))[0];
}
EW_EXPORT double test_philox(uint64_t seed, uint64_t position) { return ew_philox(seed, position); }
EW_EXPORT double test_log(double x) { return ew_log(x); }
/* Samples rows of `logits` one after the other, as an engine does that has not computed the maximum. */
EW_EXPORT void test_sample(const ew_sampling *s, int rows, const float *logits, int vocab, ew_result *result) {
    const size_t padded = ((size_t)vocab + 63) / 64 * 64;
    ew_sample_scratch z = {aligned_alloc(64, padded * 4), calloc(padded, 4), aligned_alloc(64, padded * sizeof(ew_candidate))};
    for (int r = 0; r < rows; r++) ew_sample_row(s, r, logits + (size_t)r * vocab, vocab, result, &z);
    free(z.adjusted);
    free(z.counts);
    free(z.candidates);
}
