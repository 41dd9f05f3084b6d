/* Sixteen floats at a time: exponentials, tanh, reductions of several rows at once. */
#pragma once

#include <immintrin.h>
#include <stdint.h>

#define INLINE static inline __attribute__((always_inline))
/* Without it GCC keeps small arrays of vectors in memory, loops of fixed length or not. */
#define UNROLL _Pragma("GCC unroll 16")

/* sum + a (unsigned bytes) times b (signed), four neighbours added; and sum + a times b, both signed
   16-bit integers, two neighbours added. Where VNNI is, each is one instruction, written as such
   because GCC 12 copies the sum before and after the intrinsic. Elsewhere bytes are widened to 16
   bits, the even and the odd ones: the sums are the same, for no step of them is rounded or cut. */
#ifdef __AVX512VNNI__
INLINE __m512i add_products(__m512i sum, __m512i a, __m512i b) {
    __asm__("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(a), "v"(b));
    return sum;
}

INLINE __m512i add_short_products(__m512i sum, __m512i a, __m512i b) {
    __asm__("vpdpwssd %2, %1, %0" : "+v"(sum) : "v"(a), "v"(b));
    return sum;
}
#else
INLINE __m512i add_short_products(__m512i sum, __m512i a, __m512i b) {
    return _mm512_add_epi32(sum, _mm512_madd_epi16(a, b));
}

INLINE __m512i add_products(__m512i sum, __m512i a, __m512i b) {
    __m512i even_a = _mm512_and_si512(a, _mm512_set1_epi16(0xff));
    __m512i even_b = _mm512_srai_epi16(_mm512_slli_epi16(b, 8), 8);
    sum = add_short_products(sum, even_a, even_b);
    return add_short_products(sum, _mm512_srli_epi16(a, 8), _mm512_srai_epi16(b, 8));
}
#endif

INLINE __mmask16 first_lanes(int count) {
    return (__mmask16)(count >= 16 ? 0xffff : count <= 0 ? 0 : (1u << count) - 1);
}

/* exp(x) to 2e-7; 0 where it is too small for a float. */
INLINE __m512 exponential(__m512 x) {
    __m512 y = _mm512_mul_ps(x, _mm512_set1_ps(1.44269504f));
    __m512 whole = _mm512_roundscale_ps(y, 0);
    __m512 part = _mm512_sub_ps(y, whole);
    __m512 p = _mm512_set1_ps(1.3333558e-3f);
    p = _mm512_fmadd_ps(p, part, _mm512_set1_ps(9.6181291e-3f));
    p = _mm512_fmadd_ps(p, part, _mm512_set1_ps(5.5504109e-2f));
    p = _mm512_fmadd_ps(p, part, _mm512_set1_ps(2.4022651e-1f));
    p = _mm512_fmadd_ps(p, part, _mm512_set1_ps(6.9314718e-1f));
    p = _mm512_fmadd_ps(p, part, _mm512_set1_ps(1.0f));
    return _mm512_scalef_ps(p, whole);
}

INLINE __m512 hyperbolic_tangent(__m512 x) {
    __m512 one = _mm512_set1_ps(1.0f);
    __m512 small = exponential(_mm512_mul_ps(_mm512_abs_ps(x), _mm512_set1_ps(-2.0f)));
    __m512 size = _mm512_div_ps(_mm512_sub_ps(one, small), _mm512_add_ps(one, small));
    __m512i sign = _mm512_and_si512(_mm512_castps_si512(x), _mm512_set1_epi32((int)0x80000000));
    return _mm512_castsi512_ps(_mm512_or_si512(_mm512_castps_si512(size), sign));
}

INLINE __m512i shifted_left(__m512i x, int count) {
    return _mm512_sll_epi32(x, _mm_cvtsi32_si128(count));
}

INLINE __m512i shifted_right(__m512i x, int count) {
    return _mm512_srl_epi32(x, _mm_cvtsi32_si128(count));
}

/* Each 128 bits as a 4 by 4 matrix of bytes, transposed: its own inverse. */
INLINE __m512i transposed_bytes(__m512i x) {
    return _mm512_shuffle_epi8(
        x, _mm512_broadcast_i32x4(
               _mm_set_epi8(15, 11, 7, 3, 14, 10, 6, 2, 13, 9, 5, 1, 12, 8, 4, 0)));
}

/* Lane r of each 128 bits: the largest, or the sum, of all lanes of x[r]. */
#define ACROSS(NAME, TYPE, LOW, HIGH, LOW2, HIGH2, SHUFFLE, COMBINE)              \
    INLINE TYPE NAME(const TYPE *x) {                                             \
        TYPE a = COMBINE(LOW(x[0], x[1]), HIGH(x[0], x[1]));                      \
        TYPE b = COMBINE(LOW(x[2], x[3]), HIGH(x[2], x[3]));                      \
        TYPE c = COMBINE(LOW2(a, b), HIGH2(a, b));                                \
        c = COMBINE(c, SHUFFLE(c, c, 0x4e));                                      \
        return COMBINE(c, SHUFFLE(c, c, 0xb1));                                   \
    }

INLINE __m512 low_pairs(__m512 a, __m512 b) {
    return _mm512_castpd_ps(_mm512_unpacklo_pd(_mm512_castps_pd(a), _mm512_castps_pd(b)));
}

INLINE __m512 high_pairs(__m512 a, __m512 b) {
    return _mm512_castpd_ps(_mm512_unpackhi_pd(_mm512_castps_pd(a), _mm512_castps_pd(b)));
}

ACROSS(largest_of_4, __m512, _mm512_unpacklo_ps, _mm512_unpackhi_ps, low_pairs, high_pairs,
       _mm512_shuffle_f32x4, _mm512_max_ps)
ACROSS(sums_of_4, __m512i, _mm512_unpacklo_epi32, _mm512_unpackhi_epi32, _mm512_unpacklo_epi64,
       _mm512_unpackhi_epi64, _mm512_shuffle_i32x4, _mm512_add_epi32)
#undef ACROSS

/* Lane r: the largest lane of x[r]. x has eight, of which `rows` count. */
INLINE __m512 largest_of_rows(const __m512 *x, int rows) {
    __m512 first = largest_of_4(x);
    return rows <= 4 ? first : _mm512_mask_mov_ps(first, 0xfff0, largest_of_4(x + 4));
}
