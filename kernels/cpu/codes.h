/* From streams of codes to one byte a code: the levels themselves, ready for integer products.

   The layout is code_stream.py's: a word of 16 tokens' streams is 64 bytes. Keys come as level +
   128, unsigned, because the query beside them is signed, by token and then channel; values as
   signed levels, because the weights beside them are not, by four tokens, then channel, then token.
   `tables` are 256 levels a narrow width, repeated where there are fewer: by window, or where codes
   stand for a level alone, by code. */
#pragma once

#include <immintrin.h>
#include <stdint.h>

#include "layout.h"
#include "vectors.h"

/* Bits of the stream that are read before a code: its state, if it has any; of a wide one as many
   as take it to the top of a byte. */
#define LEAD(WIDTH, STATE) ((WIDTH) <= WIDEST_NARROW ? (STATE) : 8 - (WIDTH))
/* Bits of a group's windows: those of the last end where its codes do. */
#define SPAN(WIDTH, STATE) (LEAD(WIDTH, STATE) + 4 * (WIDTH))

/* 32 bits of two words from a bit of the first on. */
INLINE __m512i funnel(__m512i low, __m512i high, int shift) {
#ifdef __AVX512VBMI2__
    return _mm512_shrdv_epi32(low, high, _mm512_set1_epi32(shift));
#else
    return _mm512_or_si512(shifted_right(low, shift), shifted_left(high, 32 - shift));
#endif
}

/* From a bit of the streams on, 32 bits a token. Before a stream and behind it there are zeros. */
INLINE __m512i bits_from(const uint8_t *words, int num_words, int bit) {
    int index = bit >> 5;
    __m512i low = _mm512_setzero_si512(), high = low;
    if (index >= 0) low = _mm512_loadu_si512(words + 64L * index);
    if (index + 1 < num_words) high = _mm512_loadu_si512(words + 64L * (index + 1));
    return funnel(low, high, bit & 31);
}

/* What is the same in all pages about where a group's windows lie. */
typedef struct {
    long word;         /* bytes before the word they begin in */
    __mmask16 has_low; /* 0: that is the one before a stream's first, which there is not */
    int32_t shift;     /* bits before them where they end in the next word; 0: they lie in one */
    __m512i places;    /* of four windows in the words of two tokens */
} WindowPlace;

INLINE WindowPlace place_windows(const int WIDTH, const int STATE, int first_bit) {
    const uint64_t steps = WIDTH * 0x03020100ull;
    int bit = first_bit - LEAD(WIDTH, STATE), index = bit >> 5, shift = bit & 31;
    int straddles = shift + SPAN(WIDTH, STATE) > 32;
    __m512i places = _mm512_set1_epi64((int64_t)(steps | (steps + 0x20202020) << 32));
    if (!straddles) places = _mm512_add_epi8(places, _mm512_set1_epi8((char)shift));
    return (WindowPlace){
        .word = 64L * index,
        .has_low = index >= 0 ? 0xffff : 0,
        .shift = straddles ? shift : 0,
        .places = places,
    };
}

/* Byte k of every 32 bits: the window of channel k, lowest bits first. */
INLINE __m512i read_windows(const int WIDTH, const int STRADDLES, const uint8_t *words,
                            const WindowPlace *place) {
    if (WIDTH == 8 && !STRADDLES) return _mm512_loadu_si512(words + place->word);
    __m512i bits;
    if (STRADDLES)
        bits = funnel(_mm512_maskz_loadu_epi32(place->has_low, words + place->word),
                      _mm512_loadu_si512(words + place->word + 64), place->shift);
    else
        bits = _mm512_loadu_si512(words + place->word);
#ifdef __AVX512VBMI__
    return _mm512_multishift_epi64_epi8(place->places, bits);
#else
    int first = _mm_cvtsi128_si32(_mm512_castsi512_si128(place->places)) & 31;
    __m512i low = _mm512_set1_epi32(255), windows = _mm512_setzero_si512();
    UNROLL
    for (int k = 0; k < 4; k++) {
        __m512i window = shifted_right(bits, first + k * WIDTH);
        windows = _mm512_or_si512(windows, _mm512_slli_epi32(_mm512_and_si512(window, low), 8 * k));
    }
    return windows;
#endif
}

/* A narrow width's levels. Bits of a window above its STATE + WIDTH are another code's. */
INLINE __m512i look_up(const int WIDTH, const int STATE, __m512i windows, const uint8_t *table) {
#ifdef __AVX512VBMI__
    __m512i first = _mm512_loadu_si512(table), second = _mm512_loadu_si512(table + 64);
    if (STATE + WIDTH <= 6) return _mm512_permutexvar_epi8(windows, first);
    __m512i low = _mm512_permutex2var_epi8(first, windows, second);
    if (STATE + WIDTH == 7) return low;
    __m512i high = _mm512_permutex2var_epi8(_mm512_loadu_si512(table + 128), windows,
                                            _mm512_loadu_si512(table + 192));
    return _mm512_mask_mov_epi8(low, _mm512_movepi8_mask(windows), high);
#else
    __m512i low = _mm512_and_si512(windows, _mm512_set1_epi8(15));
    if (!STATE)
        return _mm512_shuffle_epi8(
            _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)table)), low);
    __m512i codes = _mm512_and_si512(_mm512_srli_epi16(windows, STATE),
                                     _mm512_set1_epi8((1 << WIDTH) - 1));
    __m512i levels = _mm512_setzero_si512();
    UNROLL
    for (int code = 0; code < 1 << WIDTH; code++) {
        __m512i of_code = _mm512_broadcast_i32x4(
            _mm_loadu_si128((const __m128i *)(table + (code << STATE))));
        __mmask64 here = _mm512_cmpeq_epi8_mask(codes, _mm512_set1_epi8(code));
        levels = _mm512_mask_shuffle_epi8(levels, here, of_code, low);
    }
    return levels;
#endif
}

/* The levels of a group's windows. */
INLINE __m512i levels_of(const int WIDTH, const int STATE, const int VALUES, __m512i windows,
                         const uint8_t *table) {
    if (VALUES) windows = transposed_bytes(windows);
    if (WIDTH <= WIDEST_NARROW) return look_up(WIDTH, STATE, windows, table);
    /* Uniform: a code's own bits, and then the middle of its step. */
    __m512i own = _mm512_set1_epi8((char)(0xff00 >> WIDTH));
    __m512i middle = _mm512_set1_epi8((char)((1 << (8 - WIDTH)) / 2 ^ (VALUES ? 0x80 : 0)));
    return _mm512_ternarylogic_epi32(windows, own, middle, 0x6a);
}

INLINE void expand_group(const int WIDTH, const int STATE, const int VALUES, const int STRADDLES,
                         const uint8_t *const *words, int num_pages, const WindowPlace *place,
                         const uint8_t *table, uint8_t *levels) {
    _Pragma("GCC unroll 4")
    for (int p = 0; p < num_pages; p++) {
        __m512i windows = read_windows(WIDTH, STRADDLES, words[p], place);
        _mm512_store_si512(levels + p * (long)PAGE_LEVELS,
                           levels_of(WIDTH, STATE, VALUES, windows, table));
    }
}

INLINE void expand_groups(const int WIDTH, const int STATE, const int VALUES, const Run *run,
                          const uint8_t *const *words, int num_pages, const uint8_t *table,
                          uint8_t *levels) {
    for (int group = 0; group < run->num_groups; group++, levels += 64) {
        WindowPlace place = place_windows(WIDTH, STATE, run->first_bit + group * 4 * WIDTH);
        if (place.shift)
            expand_group(WIDTH, STATE, VALUES, 1, words, num_pages, &place, table, levels);
        else
            expand_group(WIDTH, STATE, VALUES, 0, words, num_pages, &place, table, levels);
    }
}

/* Levels of a run's groups in some pages, PAGE_LEVELS apart. */
static void expand(const Run *run, int values, int is_trellis, const uint8_t *const *words,
                   int num_pages, const uint8_t *tables, uint8_t *levels) {
    const uint8_t *table = tables + run->width * 256L;
#define CALL(WIDTH, STATE, VALUES) \
    expand_groups(WIDTH, STATE, VALUES, run, words, num_pages, table, levels)
#define WIDE(WIDTH)                                                            \
    case WIDTH:                                                                \
        if (values) CALL(WIDTH, 0, 1);                                         \
        else CALL(WIDTH, 0, 0);                                                \
        break;
#define NARROW(WIDTH)                                                          \
    case WIDTH:                                                                \
        if (is_trellis && values) CALL(WIDTH, STATE_BITS, 1);                  \
        else if (is_trellis) CALL(WIDTH, STATE_BITS, 0);                       \
        else if (values) CALL(WIDTH, 0, 1);                                    \
        else CALL(WIDTH, 0, 0);                                                \
        break;
    switch (run->width) {
        NARROW(1)
        NARROW(2)
        NARROW(3)
        NARROW(4)
        WIDE(5)
        WIDE(6)
        WIDE(7)
        WIDE(8)
    }
#undef NARROW
#undef WIDE
#undef CALL
}
