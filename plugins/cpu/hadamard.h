/* The rotation that int8 rows go through before they are rounded: builder/quantize/rotation.py says why. */
#ifndef EW_HADAMARD_H
#define EW_HADAMARD_H

#include "isa.h"

#define EW_ROTATED 64 /* elements that one call works on */

/* In place: each run of `block` of the 64 floats (a power of two) times the Walsh-Hadamard matrix, which is
 * left unscaled. Sums and differences of elements 1, 2, 4 ... apart, in that order: what an element becomes
 * does not depend on the vectors' width. */
EW_INLINE void ew_hadamard(vf *v, const int block) {
    EW_UNROLL
    for (int h = 1; h < EW_LANES && h < block; h *= 2) {
        const vf sign = vf_from_vi(1 + 2 * (vi)((vi_lanes() & h) != 0)); /* -1 where the bit is set */
        EW_UNROLL
        for (int i = 0; i < EW_ROTATED / EW_LANES; i++) v[i] = vf_fma(v[i], sign, vf_swap(v[i], h));
    }
    EW_UNROLL
    for (int h = 1; h * EW_LANES < block; h *= 2)
        EW_UNROLL
        for (int i = 0; i < EW_ROTATED / EW_LANES; i++)
            if (!(i & h)) {
                const vf a = v[i], b = v[i + h];
                v[i] = a + b;
                v[i + h] = a - b;
            }
}

#endif
