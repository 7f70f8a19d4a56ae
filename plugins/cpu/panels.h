/* How weights and rows of activations lie in memory; builder/targets/cpu/pack.py writes weights so.
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
#ifndef EW_PANELS_H
#define EW_PANELS_H

#include "isa.h"

#define EW_Q8_GROUP_BYTES(group) ((size_t)EW_PANEL * (2 + (group)))
#define EW_Q4_GROUP_BYTES(group) ((size_t)EW_PANEL * (4 + (group) / 2))
#define EW_PREFETCH 4096   /* bytes ahead */
#define EW_UNROLLED 64 /* elements along k, written out in the kernel's loop */

enum { EW_F32, EW_BF16, EW_Q8, EW_Q4, EW_FP8 };

#endif
