/* From packed planes to one byte a code: the levels themselves, ready for integer products.

   Keys come as level + 128, unsigned, because the query beside them is signed; values as signed
   levels, because the weights beside them are not. The layout is packing.py's: a plane of 4 bits
   holds codes j and j + 32 in byte j, one of 2 bits codes j, j + 16, j + 32, j + 48; one of 1 bit
   is a mask register's. `tables` are two of 64 bytes a width, each of period 16:

       1, 3, 5   level by the planes above the last bit, for a last bit of 0 and of 1
       2, 4      level by code
       6, 7      part by the plane of 4 bits, part by the plane of 2 bits; they are added  */
#pragma once

#include <immintrin.h>
#include <stdint.h>
#include <string.h>

#include "vectors.h"

/* Bits of an index above the fourth are ignored: neighbours' codes may stand there. */
INLINE __m512i look_up(__m512i codes, __m512i table) {
#ifdef __AVX512VBMI__
    return _mm512_permutexvar_epi8(codes, table);
#else
    return _mm512_shuffle_epi8(table, _mm512_and_si512(codes, _mm512_set1_epi8(15)));
#endif
}

INLINE __mmask64 plane_of_1(const uint8_t *bytes) {
    uint64_t bits;
    memcpy(&bits, bytes, 8);
    return bits;
}

INLINE __m512i plane_of_2(const uint8_t *bytes) {
    __m512i four = _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)bytes));
    return _mm512_srlv_epi64(four, _mm512_set_epi64(6, 6, 4, 4, 2, 2, 0, 0));
}

INLINE __m512i plane_of_4(const uint8_t *bytes) {
    __m512i two = _mm512_broadcast_i64x4(_mm256_loadu_si256((const __m256i *)bytes));
    return _mm512_srlv_epi64(two, _mm512_set_epi64(4, 4, 4, 4, 0, 0, 0, 0));
}

/* One group of one width: 8 * WIDTH bytes to 64. `flip` turns the top bit of codes of 8 bits. */
INLINE __m512i group_levels(const int WIDTH, const uint8_t *codes, __m512i first, __m512i second,
                            __m512i flip) {
    __m512i high;
    switch (WIDTH) {
    case 1:
        return _mm512_mask_mov_epi8(first, plane_of_1(codes), second);
    case 2:
        return look_up(plane_of_2(codes), first);
    case 3:
        high = plane_of_2(codes);
        return _mm512_mask_mov_epi8(look_up(high, first), plane_of_1(codes + 16),
                                    look_up(high, second));
    case 4:
        return look_up(plane_of_4(codes), first);
    case 5:
        high = plane_of_4(codes);
        return _mm512_mask_mov_epi8(look_up(high, first), plane_of_1(codes + 32),
                                    look_up(high, second));
    case 6:
        return _mm512_add_epi8(look_up(plane_of_4(codes), first),
                               look_up(plane_of_2(codes + 32), second));
    case 7:
        high = _mm512_add_epi8(look_up(plane_of_4(codes), first),
                               look_up(plane_of_2(codes + 32), second));
        return _mm512_mask_add_epi8(high, plane_of_1(codes + 48), high, _mm512_set1_epi8(2));
    default:
        return _mm512_xor_si512(_mm512_loadu_si512(codes), flip);
    }
}

INLINE void expand_groups(const int WIDTH, const uint8_t *codes, int num_groups,
                          const uint8_t *tables, __m512i flip, uint8_t *levels) {
    __m512i first = _mm512_loadu_si512(tables);
    __m512i second = _mm512_loadu_si512(tables + 64);
    _Pragma("GCC unroll 4")
    for (int group = 0; group < num_groups; group++, codes += 8 * WIDTH, levels += 64)
        _mm512_store_si512(levels, group_levels(WIDTH, codes, first, second, flip));
}

/* Levels of `num_groups` groups of one width. */
static void expand(int width, const uint8_t *codes, int num_groups, const uint8_t *tables,
                   int signed_levels, uint8_t *levels) {
    const uint8_t *table = tables + width * 128;
    __m512i flip = _mm512_set1_epi8(signed_levels ? (char)0x80 : 0);
#define CASE(WIDTH)                                                      \
    case WIDTH:                                                          \
        expand_groups(WIDTH, codes, num_groups, table, flip, levels);    \
        break;
    switch (width) {
        CASE(1)
        CASE(2)
        CASE(3)
        CASE(4)
        CASE(5)
        CASE(6)
        CASE(7)
        CASE(8)
    }
#undef CASE
}
