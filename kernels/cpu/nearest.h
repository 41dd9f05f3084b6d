/* Codes of the nearest levels, each channel alone: sixteen tokens at a time. */
#pragma once

#include <immintrin.h>
#include <stdint.h>

#include "coding.h"
#include "vectors.h"

/* How many of a width's borders lie below each of x, which need not be finite. Of up to 16 found by
   halves in a register of borders, of more, which are uniform, by the place of the nearest. */
INLINE __m512i nearest(const int WIDTH, __m512 x, const float *borders, const float *place) {
    __m512i one = _mm512_set1_epi32(1);
    if (WIDTH > 4) {
        __m512 at = _mm512_fmadd_ps(x, _mm512_set1_ps(place[0]), _mm512_set1_ps(place[1]));
        at = _mm512_min_ps(_mm512_max_ps(at, _mm512_setzero_ps()),
                           _mm512_set1_ps((float)((1 << WIDTH) - 1)));
        __m512i code = _mm512_cvtps_epi32(at);
        __m512 border = _mm512_i32gather_ps(code, borders, 4);
        return _mm512_mask_add_epi32(code, _mm512_cmp_ps_mask(x, border, _CMP_GT_OQ), code, one);
    }
    __m512 table = _mm512_loadu_ps(borders);
    __m512i code = _mm512_setzero_si512();
    UNROLL
    for (int half = 1 << (WIDTH - 1); half; half >>= 1) {
        __m512i last = _mm512_add_epi32(code, _mm512_set1_epi32(half - 1));
        __mmask16 above = _mm512_cmp_ps_mask(x, _mm512_permutexvar_ps(last, table), _CMP_GT_OQ);
        code = _mm512_mask_add_epi32(code, above, code, _mm512_set1_epi32(half));
    }
    return code;
}

INLINE void nearest_codes(const int WIDTH, const Column *x, int num_channels,
                          const float *borders, const float *place, __m512i *codes) {
    for (int c = 0; c < num_channels; c++)
        codes[c] = nearest(WIDTH, _mm512_load_ps(x[c]), borders, place);
}

/* Codes of a run's channels. */
static void nearest_run(const Coding *coding, int side, const CodeRun *run, const Column *columns,
                        __m512i *codes) {
    int table = side * NUM_WIDTHS + run->width, first = run->first_channel;
    FOR_WIDTH(run->width, nearest_codes, columns + first,
              run->num_groups * GROUP_CHANNELS, coding->borders + table * NUM_CODES,
              coding->places + table * 2, codes + first)
}
