/* A few rows of activations times one packed panel of weights: one kernel a weight format.
 *
 * An output element is summed over k in one order, step by step or group after group, by the same
 * instructions whatever the number of rows, panels or threads: that is the rule of one result.
 */
#ifndef EW_PRODUCT_H
#define EW_PRODUCT_H

#include "product_float.h"
#include "product_int.h"

/* `rows` rows of a product in `format`, a compile-time constant as `group` and `rows` are. */
EW_INLINE void ew_rows(const int format, const int group, const int rows, const uint8_t *panel, int k, const uint8_t *x, size_t stride, vf (*out)[EW_VECTORS], const int prefetch) {
    if (format == EW_F32) ew_rows_f32(rows, panel, k, x, stride, out, prefetch);
    if (format == EW_BF16) ew_rows_bf16(rows, panel, k, x, stride, out, prefetch);
    if (format == EW_Q8) ew_rows_q8(group, rows, panel, k, x, stride, out, prefetch);
    if (format == EW_Q4) ew_rows_q4(group, rows, panel, k, x, stride, out, prefetch);
    if (format == EW_FP8) ew_rows_fp8(rows, panel, 0, k, x, stride, out, prefetch);
}

#endif
