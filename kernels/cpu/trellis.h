/* Trellis-coded quantization of sixteen tokens at a time: trellis.py, cost by cost, tie by tie. */
#pragma once

#include <immintrin.h>
#include <stdint.h>

#include "coding.h"
#include "nearest.h"
#include "vectors.h"

/* By state and token: what a cheapest path knows of a step. */
typedef uint8_t Step[NUM_STATES][PAGE_TOKENS];

typedef struct {
    /* Of the cheapest path to each state. */
    _Alignas(64) float costs[NUM_STATES][PAGE_TOKENS];
    /* By channel: the bits that left the stream's last four when a state was reached; of a wide
       code, in the first row, the state before it. Longer than its channels by one vector at
       least, because four bytes are read where one counts. */
    Step *left;
} Paths;

/* The cheapest state of each token, the first of equals. */
static __m512i cheapest(const Paths *paths) {
    __m512i best = _mm512_setzero_si512();
    __m512 least = _mm512_load_ps(paths->costs[0]);
    for (int state = 1; state < NUM_STATES; state++) {
        __m512 cost = _mm512_load_ps(paths->costs[state]);
        __mmask16 less = _mm512_cmp_ps_mask(cost, least, _CMP_LT_OQ);
        least = _mm512_mask_mov_ps(least, less, cost);
        best = _mm512_mask_mov_epi32(best, less, _mm512_set1_epi32(state));
    }
    return best;
}

/* Each token in the one state given, at no cost, and in no other. */
static void stand_at(Paths *paths, __m512i states) {
    for (int state = 0; state < NUM_STATES; state++) {
        __mmask16 here = _mm512_cmpeq_epi32_mask(states, _mm512_set1_epi32(state));
        _mm512_store_ps(paths->costs[state],
                        _mm512_maskz_mov_ps(~here, _mm512_set1_ps(__builtin_inff())));
    }
}

/* One channel of a narrow width. A window is a code above the state it is reached from, or the
   state it leads to above the bits that leave. */
INLINE void take_step(const int WIDTH, __m512 x, const float *values, Paths *paths, int channel) {
    const __m512 weight = _mm512_set1_ps((float)(1 << (2 * WIDTH)));
    _Alignas(64) float next[NUM_STATES][PAGE_TOKENS];
    for (int state = 0; state < NUM_STATES; state++) {
        __m512 least = _mm512_setzero_ps();
        __m512i left = _mm512_setzero_si512();
        UNROLL
        for (int leaving = 0; leaving < 1 << WIDTH; leaving++) {
            int window = state << WIDTH | leaving;
            __m512 error = _mm512_sub_ps(x, _mm512_set1_ps(values[window]));
            /* The weight is a power of two: this rounds as a product and a sum do. */
            __m512 cost = _mm512_fmadd_ps(_mm512_mul_ps(error, error), weight,
                                          _mm512_load_ps(paths->costs[window % NUM_STATES]));
            if (!leaving) {
                least = cost;
                continue;
            }
            __mmask16 less = _mm512_cmp_ps_mask(cost, least, _CMP_LT_OQ);
            least = _mm512_mask_mov_ps(least, less, cost);
            left = _mm512_mask_mov_epi32(left, less, _mm512_set1_epi32(leaving));
        }
        _mm512_store_ps(next[state], least);
        _mm_store_si128((__m128i *)paths->left[channel][state], _mm512_cvtepi32_epi8(left));
    }
    for (int state = 0; state < NUM_STATES; state++)
        _mm512_store_ps(paths->costs[state], _mm512_load_ps(next[state]));
}

static void narrow_run(const Coding *coding, int side, const CodeRun *run, const Column *columns,
                       Paths *paths) {
    int table = side * NUM_WIDTHS + run->width;
    const float *values = coding->values + table * NUM_CODES;
    __m512 reach = _mm512_set1_ps(coding->reaches[table]);
    __m512 lowest = _mm512_sub_ps(_mm512_setzero_ps(), reach);
    int end = run->first_channel + run->num_groups * GROUP_CHANNELS;
    for (int c = run->first_channel; c < end; c++) {
        __m512 x = _mm512_load_ps(columns[c]);
        x = _mm512_min_ps(_mm512_max_ps(x, lowest), reach);
        switch (run->width) {
        case 1: take_step(1, x, values, paths, c); break;
        case 2: take_step(2, x, values, paths, c); break;
        case 3: take_step(3, x, values, paths, c); break;
        case 4: take_step(4, x, values, paths, c); break;
        }
    }
}

/* A wide run's codes are the nearest; the last four bits of each are the state after it. */
static void wide_run(const CodeRun *run, const __m512i *codes, Paths *paths) {
    int end = run->first_channel + run->num_groups * GROUP_CHANNELS;
    for (int c = run->first_channel; c < end; c++) {
        _mm_store_si128((__m128i *)paths->left[c][0], _mm512_cvtepi32_epi8(cheapest(paths)));
        stand_at(paths, shifted_right(codes[c], run->width - STATE_BITS));
    }
}

/* Codes of all heads' keys, or values: runs from `first` to `end`, after the states `before`. */
static void path_codes(const Coding *coding, int side, int first, int end, const Column *columns,
                       __m512i before, Paths *paths, __m512i *codes) {
    stand_at(paths, before);
    for (int r = first; r < end; r++) {
        const CodeRun *run = coding->runs + r;
        if (run->width > WIDEST_NARROW) {
            nearest_run(coding, side, run, columns, codes);
            wide_run(run, codes, paths);
        } else if (run->width) {
            narrow_run(coding, side, run, columns, paths);
        }
    }
    __m512i state = cheapest(paths), low = _mm512_set1_epi32(NUM_STATES - 1);
    __m512i token = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
    for (int r = end - 1; r >= first; r--) {
        const CodeRun *run = coding->runs + r;
        if (!run->width) continue;
        for (int k = run->num_groups * GROUP_CHANNELS - 1; k >= 0; k--) {
            int c = run->first_channel + k;
            const uint8_t *left = paths->left[c][0];
            if (run->width > WIDEST_NARROW) {
                state = _mm512_cvtepu8_epi32(_mm_load_si128((const __m128i *)left));
                continue;
            }
            __m512i place = _mm512_add_epi32(_mm512_slli_epi32(state, 4), token);
            __m512i bits = _mm512_and_si512(_mm512_i32gather_epi32(place, left, 1), low);
            __m512i window = shifted_left(state, run->width);
            window = _mm512_or_si512(window, bits);
            codes[c] = _mm512_srli_epi32(window, STATE_BITS);
            state = _mm512_and_si512(window, low);
        }
    }
}
