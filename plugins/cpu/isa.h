/* The few vector primitives that kernels are written over, and what each instruction set gives for them.
 *
 *   vf  EW_LANES floats      vi  EW_LANES 32-bit integers      vb  EW_LANES * 4 bytes
 *
 * A panel is EW_PANEL weight columns, EW_PANEL / EW_LANES vectors side by side. The builder packs
 * weights for these two numbers and for EW_OFFSET, what is added to an int8 weight when it is stored:
 * VNNI multiplies unsigned by signed bytes, so there weights are stored as w + 128 and the sum of the
 * activations, times 128, is taken off again (exactly, in integers).
 */
#ifndef EW_ISA_H
#define EW_ISA_H

#include <stdint.h>
#include <string.h>

#define EW_INLINE static inline __attribute__((always_inline))
#define EW_NOINLINE static __attribute__((noinline))
#define EW_ALIGNED __attribute__((aligned(64)))
#if defined(__clang__)
#define EW_UNROLL _Pragma("clang loop unroll(full)")
#else
#define EW_UNROLL _Pragma("GCC unroll 16")
#endif

#if defined(EW_ISA_AVX512)
#include <immintrin.h>
#define EW_LANES 16
#define EW_PANEL 32
#define EW_OFFSET 128
#define EW_MAX_ROWS 6
#define EW_ATTENTION_ROWS 6
#if defined(EW_HAS_AMX)
#define EW_DOT_STEP 32 /* elements along k that rows and panels for bf16 products are padded to: a row of a tile */
#else
#define EW_DOT_STEP 4 /* or a pair for each of two chains */
#endif
#elif defined(EW_ISA_AVX2)
#include <immintrin.h>
#define EW_LANES 8
#define EW_PANEL 16
#if defined(EW_HAS_AVXVNNI)
#define EW_OFFSET 128
#else
#define EW_OFFSET 0
#endif
#define EW_MAX_ROWS 4
#define EW_ATTENTION_ROWS 3
#elif defined(EW_ISA_NEON)
#include <arm_neon.h>
#define EW_LANES 4
#define EW_PANEL 16
#define EW_OFFSET 0
#if defined(EW_HAS_I8MM)
#define EW_MAX_ROWS 4
#else
#define EW_MAX_ROWS 3
#endif
#define EW_ATTENTION_ROWS 3
#else
#if defined(__SSE2__)
#include <emmintrin.h>
#endif
#define EW_LANES 4
#define EW_PANEL 16
#define EW_OFFSET 0
#define EW_MAX_ROWS 2
#define EW_ATTENTION_ROWS 3
#endif
#define EW_VECTORS (EW_PANEL / EW_LANES)
/* Rows of a block. Decoding fp8 to floats takes registers, of which AVX2 has sixteen; sums of floats take them on
 * NEON, where integers of pairs of rows share one. */
#define EW_BLOCK_ROWS(FORMAT) (FORMAT == EW_FP8 && EW_LANES == 8 ? 2 : EW_MAX_ROWS == 4 && FORMAT != EW_Q8 && FORMAT != EW_Q4 ? 3 : EW_MAX_ROWS)

typedef float vf __attribute__((vector_size(EW_LANES * 4)));
typedef int32_t vi __attribute__((vector_size(EW_LANES * 4)));
typedef uint32_t vu __attribute__((vector_size(EW_LANES * 4)));
typedef int8_t vb __attribute__((vector_size(EW_LANES * 4)));
typedef int8_t vq __attribute__((vector_size(EW_LANES))); /* EW_LANES bytes */
typedef uint16_t vh __attribute__((vector_size(EW_LANES * 2)));
typedef int16_t vw __attribute__((vector_size(EW_LANES * 4))); /* EW_LANES pairs of 16-bit integers */

EW_INLINE vf vf_load(const float *p) { vf v; memcpy(&v, p, sizeof v); return v; }
EW_INLINE void vf_store(float *p, vf v) { memcpy(p, &v, sizeof v); }
EW_INLINE vi vi_load(const int32_t *p) { vi v; memcpy(&v, p, sizeof v); return v; }
EW_INLINE void vi_store(int32_t *p, vi v) { memcpy(p, &v, sizeof v); }
EW_INLINE vb vb_load(const void *p) { vb v; memcpy(&v, p, sizeof v); return v; }
EW_INLINE vf vf_zero(void) { return (vf){0}; }
EW_INLINE vf vf_set1(float x) { return x - (vf){0}; } /* not 0 + x, which is another number for -0 */
EW_INLINE vi vi_set1(int32_t x) { return (vi){0} + x; }
EW_INLINE vf vf_bits(vi v) { return (vf)v; }
EW_INLINE vi vi_bits(vf v) { return (vi)v; }
EW_INLINE vf vf_abs(vf v) { return vf_bits(vi_bits(v) & 0x7fffffff); }
/* mask lanes are 0 or -1; takes a where the mask is set */
EW_INLINE vf vf_select(vi mask, vf a, vf b) { return vf_bits((vi_bits(a) & mask) | (vi_bits(b) & ~mask)); }
EW_INLINE vi vi_select(vi mask, vi a, vi b) { return (a & mask) | (b & ~mask); }
EW_INLINE vf vf_from_vi(vi v) { return __builtin_convertvector(v, vf); }
EW_INLINE vf vf_from_bf16(const uint16_t *p) {
    vh v;
    memcpy(&v, p, sizeof v);
    return vf_bits((vi)(__builtin_convertvector(v, vu) << 16));
}
/* half precision: exponent and mantissa moved into place, and the exponents' biases made equal by an exact product */
EW_INLINE vf vf_from_f16(const uint16_t *p) {
#if defined(EW_ISA_AVX512)
    return (vf)_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p));
#elif defined(EW_ISA_AVX2)
    return (vf)_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p));
#else
    vh v;
    memcpy(&v, p, sizeof v);
    vu h = __builtin_convertvector(v, vu);
    vf size = vf_bits((vi)((h & 0x7fff) << 13)) * 0x1p112f;
    return vf_bits(vi_bits(size) | (vi)((h & 0x8000) << 16));
#endif
}
/* fp8 e4m3 in the highest byte of each lane, likewise; the code of its NaN gives 480 */
EW_INLINE vf vf_from_e4m3(vi v) {
    return vf_bits((v >> 4) & (int32_t)0x87f00000) * 0x1p120f;
}
EW_INLINE float ew_bf16_to_f32(uint16_t h) { uint32_t u = (uint32_t)h << 16; float f; memcpy(&f, &u, 4); return f; }
/* round to nearest, ties to even; inputs are finite */
EW_INLINE uint16_t ew_f32_to_bf16(float f) { uint32_t u; memcpy(&u, &f, 4); return (uint16_t)((u + 0x7fff + ((u >> 16) & 1)) >> 16); }
EW_INLINE vb vb_set1(const void *p) { int32_t x; memcpy(&x, p, 4); return (vb)vi_set1(x); }
/* What was loaded before is loaded again behind this: compilers keep it, and run out of registers. */
EW_INLINE void ew_forget(void) { __asm__ volatile("" ::: "memory"); }
EW_INLINE float ew_absf(float x) { return x < 0 ? -x : x; }

#if defined(EW_ISA_AVX512)

EW_INLINE vf vf_fma(vf a, vf b, vf c) { return (vf)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c); }
EW_INLINE vf vf_max(vf a, vf b) { return (vf)_mm512_max_ps((__m512)a, (__m512)b); }
EW_INLINE vf vf_round(vf a) { return (vf)_mm512_roundscale_ps((__m512)a, 8); }
EW_INLINE vi vi_from_vf(vf a) { return (vi)_mm512_cvtps_epi32((__m512)a); }
EW_INLINE vi vi_dot(vi c, vb w, vb a) { return (vi)_mm512_dpbusd_epi32((__m512i)c, (__m512i)w, (__m512i)a); }
EW_INLINE void vi_store_bytes(int8_t *p, vi v) { _mm_storeu_si128((__m128i *)p, _mm512_cvtepi32_epi8((__m512i)v)); }
#if defined(EW_HAS_BF16)
/* c + w[1] * a[1] + w[0] * a[0] of each pair of bf16, in this order, each product fused; subnormals count as zeros */
EW_INLINE vf vf_dot(vf c, vb w, vb a) { return (vf)_mm512_dpbf16_ps((__m512)c, (__m512bh)w, (__m512bh)a); }
EW_INLINE void vf_store_bf16(uint16_t *p, vf v) { __m256bh h = _mm512_cvtneps_pbh((__m512)v); memcpy(p, &h, sizeof h); }
/* table[i & 127] for each byte */
EW_INLINE vb vb_look_up(vb i, const uint8_t *table) { return (vb)_mm512_permutex2var_epi8((__m512i)vb_load(table), (__m512i)i, (__m512i)vb_load(table + 64)); }
#endif
EW_INLINE vi vf_gt(vf a, vf b) { return (vi)_mm512_movm_epi32(_mm512_cmp_ps_mask((__m512)a, (__m512)b, _CMP_GT_OQ)); }
EW_INLINE int vi_any(vi m) { return _mm512_movepi32_mask((__m512i)m) != 0; }
EW_INLINE void ew_prefetch(const void *p) { _mm_prefetch((const char *)p, _MM_HINT_T0); }
EW_INLINE void ew_pause(void) { _mm_pause(); }

#elif defined(EW_ISA_AVX2)

EW_INLINE vf vf_fma(vf a, vf b, vf c) { return (vf)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c); }
EW_INLINE vf vf_max(vf a, vf b) { return (vf)_mm256_max_ps((__m256)a, (__m256)b); }
EW_INLINE vf vf_round(vf a) { return (vf)_mm256_round_ps((__m256)a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
EW_INLINE vi vi_from_vf(vf a) { return (vi)_mm256_cvtps_epi32((__m256)a); }
#if defined(EW_HAS_AVXVNNI)
EW_INLINE vi vi_dot(vi c, vb w, vb a) { return (vi)_mm256_dpbusd_avx_epi32((__m256i)c, (__m256i)w, (__m256i)a); }
#else
/* Sums of two neighbouring products of bytes, w unsigned, in 16 bits, and their addition to 32-bit sums. For w from 0 to
 * 15, 16 bits hold EW_SHORT_SUMS of them (8 * 2 * 15 * 127 = 30480): an addition for each would be half of the work. */
EW_INLINE vw vw_pairs(vb w, vb a) { return (vw)_mm256_maddubs_epi16((__m256i)w, (__m256i)a); }
EW_INLINE vi vi_add_pairs(vi c, vw pairs) { return c + (vi)_mm256_madd_epi16((__m256i)pairs, _mm256_set1_epi16(1)); }
#define EW_SHORT_SUMS 8
/* |w| <= 127 and |a| <= 127, so a pair is at most 32258 and the saturating sum is exact */
EW_INLINE vi vi_dot(vi c, vb w, vb a) {
    return vi_add_pairs(c, vw_pairs((vb)_mm256_abs_epi8((__m256i)w), (vb)_mm256_sign_epi8((__m256i)a, (__m256i)w)));
}
/* the same for w from 0 to 127 */
EW_INLINE vi vi_dot_unsigned(vi c, vb w, vb a) { return vi_add_pairs(c, vw_pairs(w, a)); }
#define EW_HAS_DOT_UNSIGNED
#endif
EW_INLINE int vi_any(vi m) { return _mm256_movemask_ps((__m256)m) != 0; }
EW_INLINE void ew_prefetch(const void *p) { _mm_prefetch((const char *)p, _MM_HINT_T0); }
EW_INLINE void ew_pause(void) { _mm_pause(); }

#else /* NEON, portable C */

#if defined(EW_ISA_NEON)
EW_INLINE vf vf_fma(vf a, vf b, vf c) { return (vf)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b); }
EW_INLINE vf vf_max(vf a, vf b) { return (vf)vmaxq_f32((float32x4_t)a, (float32x4_t)b); }
EW_INLINE vi vi_from_vf(vf a) { return (vi)vcvtnq_s32_f32((float32x4_t)a); }
EW_INLINE vf vf_round(vf a) { return (vf)vrndnq_f32((float32x4_t)a); }
EW_INLINE vi vi_dot(vi c, vb w, vb a) { return (vi)vdotq_s32((int32x4_t)c, (int8x16_t)w, (int8x16_t)a); }
EW_INLINE void ew_pause(void) { __asm__ volatile("yield"); }
#if defined(EW_HAS_I8MM)
/* Dot products of eight bytes of two rows with two columns: of the first row with both, then of the second. */
EW_INLINE vi vi_dot_pairs(vi c, vb rows, vb columns) { return (vi)vmmlaq_s32((int32x4_t)c, (int8x16_t)rows, (int8x16_t)columns); }
EW_INLINE vb vb_pair(const uint8_t *p, const uint8_t *q) { return (vb)vcombine_u8(vld1_u8(p), vld1_u8(q)); }
#endif
#else
EW_INLINE vf vf_fma(vf a, vf b, vf c) { return a * b + c; } /* two roundings: this level has no fused form */
EW_INLINE vf vf_max(vf a, vf b) { return vf_select((vi)(a > b), a, b); }
/* adding 1.5 * 2^23 rounds |a| < 2^22 to nearest even */
EW_INLINE vf vf_round(vf a) { const float magic = 12582912.0f; return (a + magic) - magic; }
EW_INLINE vi vi_from_vf(vf a) { return __builtin_convertvector(vf_round(a), vi); }
EW_INLINE void ew_pause(void) { __asm__ volatile("" ::: "memory"); }
#endif
#if !defined(EW_ISA_NEON)
/* sums of two neighbouring products */
#if defined(__SSE2__)
EW_INLINE vi vi_dot16(vi c, vw a, vw b) { return c + (vi)_mm_madd_epi16((__m128i)a, (__m128i)b); }
#else
EW_INLINE vi vi_dot16(vi c, vw a, vw b) {
    vi x = (vi)a, y = (vi)b;
    return c + ((x << 16) >> 16) * ((y << 16) >> 16) + (x >> 16) * (y >> 16);
}
#endif
/* even and odd bytes apart, widened to 16 bits */
EW_INLINE vi vi_dot(vi c, vb w, vb a) {
    vw x = (vw)w, y = (vw)a;
    return vi_dot16(vi_dot16(c, (x << 8) >> 8, (y << 8) >> 8), x >> 8, y >> 8);
}
#endif
EW_INLINE int vi_any(vi m) {
    int32_t any = 0;
    for (int i = 0; i < EW_LANES; i++) any |= m[i];
    return any != 0;
}
EW_INLINE void ew_prefetch(const void *p) { __builtin_prefetch(p); }

#endif

#if !defined(EW_HAS_DOT_UNSIGNED)
EW_INLINE vi vi_dot_unsigned(vi c, vb w, vb a) { return vi_dot(c, w, a); }
#endif
#if !defined(EW_ISA_AVX512) /* which has instructions for these */
EW_INLINE void vi_store_bytes(int8_t *p, vi v) {
    vq q = __builtin_convertvector(v, vq);
    memcpy(p, &q, sizeof q);
}
EW_INLINE vi vf_gt(vf a, vf b) { return (vi)(a > b); }
#endif

EW_INLINE vi vi_lanes(void) {
    vi v;
    for (int i = 0; i < EW_LANES; i++) v[i] = i;
    return v;
}

/* Lanes whose numbers differ by the bit `h` change places; `h` is a constant. */
#if EW_LANES == 16
#define EW_SWAPPED(v, h) __builtin_shufflevector(v, v, 0 ^ h, 1 ^ h, 2 ^ h, 3 ^ h, 4 ^ h, 5 ^ h, 6 ^ h, 7 ^ h, 8 ^ h, 9 ^ h, 10 ^ h, 11 ^ h, 12 ^ h, 13 ^ h, 14 ^ h, 15 ^ h)
#elif EW_LANES == 8
#define EW_SWAPPED(v, h) __builtin_shufflevector(v, v, 0 ^ h, 1 ^ h, 2 ^ h, 3 ^ h, 4 ^ h, 5 ^ h, 6 ^ h, 7 ^ h)
#else
#define EW_SWAPPED(v, h) __builtin_shufflevector(v, v, 0 ^ h, 1 ^ h, 2 ^ h, 3 ^ h)
#endif
EW_INLINE vf vf_swap(vf v, const int h) {
    if (h == 1) return EW_SWAPPED(v, 1);
    if (h == 2) return EW_SWAPPED(v, 2);
#if EW_LANES > 4
    if (h == 4) return EW_SWAPPED(v, 4);
#endif
#if EW_LANES > 8
    if (h == 8) return EW_SWAPPED(v, 8);
#endif
    return v;
}

/* Sums and maxima over lanes halve the vector each time: one fixed order. */
#if EW_LANES == 16
#define EW_FOLD(STEP) STEP(8); STEP(4); STEP(2); STEP(1)
#elif EW_LANES == 8
#define EW_FOLD(STEP) STEP(4); STEP(2); STEP(1)
#else
#define EW_FOLD(STEP) STEP(2); STEP(1)
#endif
EW_INLINE float vf_sum(vf v) {
#define EW_STEP(h) v += vf_swap(v, h)
    EW_FOLD(EW_STEP);
#undef EW_STEP
    return v[0];
}
EW_INLINE float vf_maximum(vf v) {
#define EW_STEP(h) v = vf_max(v, vf_swap(v, h))
    EW_FOLD(EW_STEP);
#undef EW_STEP
    return v[0];
}
EW_INLINE int32_t vi_sum(vi v) {
#define EW_STEP(h) v += vi_bits(vf_swap(vf_bits(v), h))
    EW_FOLD(EW_STEP);
#undef EW_STEP
    return v[0];
}

/* p * 2^n for whole n; something under 2^-126 where the result would be */
EW_INLINE vf vf_scale(vf p, vf n) {
#if defined(EW_ISA_AVX512)
    return (vf)_mm512_scalef_ps((__m512)p, (__m512)n);
#else
    vi tiny = vf_gt(vf_set1(-126.0f), n);
    n = vf_select(tiny, vf_set1(-126.0f), n);
    return vf_select(tiny, vf_zero(), vf_bits(vi_bits(p) + (vi_from_vf(n) << 23)));
#endif
}
/* 2^x for x <= 0 (and a little above), by range reduction to [-0.5, 0.5] and a polynomial. vf_exp2 is a degree-6
 * Taylor series: relative error under 4e-8 of the exact, but below -126 it may be any number under 2^-126. vf_exp2_8 is what
 * 8-bit weights need: degree 4, fitted, relative error under 4e-6. A NaN stays one. */
EW_INLINE vf vf_exp2(vf x) {
    x = vf_max(vf_set1(-200.0f), x);
    vf n = vf_round(x), r = x - n;
    vf p = vf_set1(1.5403530e-4f);
    p = vf_fma(p, r, vf_set1(1.3333558e-3f));
    p = vf_fma(p, r, vf_set1(9.6181291e-3f));
    p = vf_fma(p, r, vf_set1(5.5504109e-2f));
    p = vf_fma(p, r, vf_set1(2.4022651e-1f));
    p = vf_fma(p, r, vf_set1(6.9314718e-1f));
    p = vf_fma(p, r, vf_set1(1.0f));
    return vf_scale(p, n);
}
EW_INLINE vf vf_exp2_8(vf x) {
    x = vf_max(vf_set1(-200.0f), x);
    vf n = vf_round(x), r = x - n;
    vf p = vf_set1(9.5828500e-3f);
    p = vf_fma(p, r, vf_set1(5.5906430e-2f));
    p = vf_fma(p, r, vf_set1(2.4024099e-1f));
    p = vf_fma(p, r, vf_set1(6.9312419e-1f));
    p = vf_fma(p, r, vf_set1(1.0f));
    return vf_scale(p, n);
}

#define EW_LOG2E 1.44269504f

/* x / (1 + e^-x) */
EW_INLINE vf vf_silu(vf x) {
    vf limited = vf_max(x, vf_set1(-80.0f));
    vf e = vf_exp2(vf_max(limited * -EW_LOG2E, vf_set1(-126.0f)));
    return x / (e + 1.0f);
}

#endif
