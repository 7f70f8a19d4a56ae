/* What the machine can do at most: reading memory, and multiplying bytes. */
#include "isa.h"

__attribute__((visibility("default"))) int32_t roof_read(const uint8_t *data, size_t bytes) {
    vi sums[8] = {0};
    for (size_t at = 0; at + sizeof sums <= bytes; at += sizeof sums)
        EW_UNROLL
        for (int i = 0; i < 8; i++) sums[i] ^= vi_load((const int32_t *)(data + at) + i * EW_LANES);
    for (int i = 1; i < 8; i++) sums[0] ^= sums[i];
    return vi_any(sums[0]);
}

/* 12 * 4 * EW_LANES multiplications of bytes a round. */
__attribute__((visibility("default"))) int32_t roof_multiply(int64_t rounds) {
    vi sums[12] = {0}, total = {0};
    vb w = (vb)vi_set1(0x01020304), x = (vb)vi_set1(0x7f017f02);
    for (int64_t i = 0; i < rounds; i++) {
        EW_UNROLL
        for (int j = 0; j < 12; j++) {
            __asm__ volatile("" : "+x"(x)); /* or all products would be one */
            sums[j] = vi_dot(sums[j], w, x);
        }
    }
    for (int j = 0; j < 12; j++) total ^= sums[j];
    return vi_any(total);
}
