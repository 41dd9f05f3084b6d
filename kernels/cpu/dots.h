/* Integer products of query rows with keys, and of weights with values, rows kept in registers. */
#pragma once

#include <immintrin.h>
#include <stdint.h>
#include <string.h>

#include "layout.h"
#include "vectors.h"

/* A query as two bytes a channel: value = scale * (coarse + fine / 254). One byte is an error of
   0.4 % of the largest channel in every other; the second takes it to 0.002 %. */
typedef struct {
    _Alignas(64) int8_t codes[BLOCK_ROWS][2][MAX_DIM];
    /* What 128 too many in every key has added, negative. */
    _Alignas(64) int32_t offsets[2][16];
    _Alignas(64) float scales[16];
} IntegerQuery;

/* What makes logits of products: by token of the page. */
typedef struct {
    const float *scales[TILE_PAGES];
    const float *centers[TILE_PAGES]; /* of row 0; rows are STRETCH_TOKENS apart, or 0 */
    long center_stride;
} Finish;

/* Pages of the next tile, fetched line by line between the products of this one: memory is slower
   than the arithmetic, and no processor guesses where a page table leads. */
typedef struct {
    const uint8_t *keys[TILE_PAGES], *values[TILE_PAGES];
    int32_t key_lines, value_lines; /* of 64 bytes in each; 0: there is no next tile */
} Ahead;

INLINE void fetch(const uint8_t *bytes, int line) {
    _mm_prefetch((const char *)bytes + line * 64, _MM_HINT_T0);
}

INLINE __m512i four_channels(const int8_t *codes) {
    int32_t four;
    memcpy(&four, codes, GROUP_CHANNELS);
    return _mm512_set1_epi32(four);
}

INLINE void dot_key_pages(const int ROWS, const int PAGES, int first_row,
                          const uint8_t *const *levels, int num_groups, const IntegerQuery *query,
                          const Finish *finish, int page, const uint8_t *const *ahead,
                          int num_lines, float *logits, long row_stride) {
    __m512i sums[BLOCK_ROWS][2][4];
    UNROLL
    for (int r = 0; r < ROWS; r++)
        UNROLL
        for (int term = 0; term < 2; term++)
            UNROLL
            for (int p = 0; p < PAGES; p++)
                sums[r][term][p] = _mm512_set1_epi32(query->offsets[term][first_row + r]);
    /* One pointer, so that rows are displacements. */
    const int8_t *codes = query->codes[first_row][0];
    for (int group = 0; group < num_groups; group++, codes += GROUP_CHANNELS) {
        __m512i keys[4];
        UNROLL
        for (int p = 0; p < PAGES; p++)
            keys[p] = _mm512_loadu_si512(levels[page + p] + group * 64);
        if (group < num_lines)
            UNROLL
            for (int p = 0; p < PAGES; p++) fetch(ahead[page + p], group);
        UNROLL
        for (int r = 0; r < ROWS; r++)
            UNROLL
            for (int term = 0; term < 2; term++) {
                __m512i channels = four_channels(codes + (2 * r + term) * MAX_DIM);
                UNROLL
                for (int p = 0; p < PAGES; p++)
                    sums[r][term][p] = add_products(sums[r][term][p], keys[p], channels);
            }
    }
    UNROLL
    for (int r = 0; r < ROWS; r++)
        UNROLL
        for (int p = 0; p < PAGES; p++) {
            __m512 fine = _mm512_cvtepi32_ps(sums[r][1][p]);
            __m512 sum = _mm512_fmadd_ps(fine, _mm512_set1_ps(1.0f / 254.0f),
                                         _mm512_cvtepi32_ps(sums[r][0][p]));
            sum = _mm512_mul_ps(sum, _mm512_set1_ps(query->scales[first_row + r]));
            __m512 center =
                _mm512_loadu_ps(finish->centers[page + p] + r * finish->center_stride);
            sum = _mm512_fmadd_ps(sum, _mm512_loadu_ps(finish->scales[page + p]), center);
            _mm512_store_ps(logits + r * row_stride + (page + p) * PAGE_TOKENS, sum);
        }
}

/* As many pages at once as have sums in registers, and none alone that could have company. */
INLINE void dot_keys_of(const int ROWS, const int MOST, int first_row,
                        const uint8_t *const *levels, int page, int end, int num_groups,
                        const IntegerQuery *query, const Finish *finish,
                        const uint8_t *const *ahead, int num_lines, float *logits,
                        long row_stride) {
#define PART(PAGES)                                                                             \
    dot_key_pages(ROWS, PAGES, first_row, levels, num_groups, query, finish, page, ahead,       \
                  num_lines, logits, row_stride)
    while (page < end) {
        int count = end - page;
        if (count > MOST) count = MOST == 3 ? 2 : MOST;
        if (count == 1) PART(1);
        if (MOST >= 2 && count == 2) PART(2);
        if (MOST >= 3 && count == 3) PART(3);
        if (MOST >= 4 && count == 4) PART(4);
        page += count;
    }
#undef PART
}

/* logits[r][16 * page + token] of the query's rows from `first_row` on and pages [page, end), each
   `levels` (num_groups, 16, 4). */
static void dot_keys(int rows, int first_row, const uint8_t *const *levels, int page, int end,
                     int num_groups, const IntegerQuery *query, const Finish *finish,
                     const uint8_t *const *ahead, int num_lines, float *logits,
                     long row_stride) {
#define CASE(ROWS, MOST)                                                                      \
    case ROWS:                                                                                \
        dot_keys_of(ROWS, MOST, first_row, levels, page, end, num_groups, query, finish,      \
                    ahead, num_lines, logits, row_stride);                                    \
        break;
    switch (rows) {
        CASE(1, 4)
        CASE(2, 4)
        CASE(3, 4)
        CASE(4, 3)
        CASE(5, 2)
        CASE(6, 2)
        CASE(7, 1)
        CASE(8, 1)
    }
#undef CASE
}

/* Weights of a tile as one or two unsigned bytes: scale * (coarse + fine / 255). */
typedef struct {
    _Alignas(64) uint8_t codes[BLOCK_ROWS][2][TILE_PAGES * 64]; /* by four tokens, channel, token */
    _Alignas(64) float scales[16];
    _Alignas(64) float decays[16]; /* of what earlier tiles have summed */
} IntegerWeights;

INLINE void dot_value_groups(const int ROWS, const int GROUPS, const int TERMS,
                             const uint8_t *const *levels, int num_pages, int group,
                             const IntegerWeights *weights, const Ahead *ahead, float *sums,
                             long row_stride) {
    __m512i totals[BLOCK_ROWS][2][8];
    UNROLL
    for (int r = 0; r < ROWS; r++)
        UNROLL
        for (int term = 0; term < TERMS; term++)
            UNROLL
            for (int g = 0; g < GROUPS; g++) totals[r][term][g] = _mm512_setzero_si512();
    for (int p = 0; p < num_pages; p++) {
        __m512i values[8];
        UNROLL
        for (int g = 0; g < GROUPS; g++) {
            values[g] = _mm512_loadu_si512(levels[p] + (group + g) * 64);
            if (TERMS == 2)
                values[g] = _mm512_xor_si512(transposed_bytes(values[g]),
                                             _mm512_set1_epi8((char)0x80));
        }
        if (group < ahead->value_lines)
            UNROLL
            for (int g = 0; g < GROUPS; g++) fetch(ahead->values[p], group + g);
        UNROLL
        for (int r = 0; r < ROWS; r++)
            UNROLL
            for (int term = 0; term < TERMS; term++) {
                __m512i tokens = _mm512_load_si512(weights->codes[r][term] + p * 64);
                UNROLL
                for (int g = 0; g < GROUPS; g++)
                    totals[r][term][g] = add_products(totals[r][term][g], tokens, values[g]);
            }
    }
    UNROLL
    for (int r = 0; r < ROWS; r++) {
        __m512 scale = _mm512_set1_ps(weights->scales[r]);
        __m512 decay = _mm512_set1_ps(weights->decays[r]);
        UNROLL
        for (int g = 0; g < GROUPS; g++) {
            float *sum = sums + r * row_stride + (group + g) * 16;
            __m512 added = _mm512_cvtepi32_ps(totals[r][0][g]);
            if (TERMS == 2)
                added = _mm512_fmadd_ps(_mm512_cvtepi32_ps(totals[r][1][g]),
                                        _mm512_set1_ps(1.0f / 255.0f), added);
            added = _mm512_mul_ps(added, scale);
            _mm512_store_ps(sum, _mm512_fmadd_ps(_mm512_load_ps(sum), decay, added));
        }
    }
}

INLINE void dot_values_of(const int ROWS, const int WIDE, const int TERMS,
                          const uint8_t *const *levels, int num_pages, int num_groups,
                          const IntegerWeights *weights, const Ahead *ahead, float *sums,
                          long row_stride) {
    int group = 0;
    for (; group + WIDE <= num_groups; group += WIDE)
        dot_value_groups(ROWS, WIDE, TERMS, levels, num_pages, group, weights, ahead, sums,
                         row_stride);
    for (; group < num_groups; group++)
        dot_value_groups(ROWS, 1, TERMS, levels, num_pages, group, weights, ahead, sums,
                         row_stride);
}

/* sums[r][16 * group + 4 * part + channel] += weights of four tokens times their values; each of
   the pages is `levels` (num_groups, 4 times 4 tokens, 4 channels, tokens), signed. Where all are
   codes of eight bits, they are read from the page, and deserve both bytes of the weights. */
static void dot_values(int rows, int all_bytes, const uint8_t *const *levels, int num_pages,
                       int num_groups, const IntegerWeights *weights, const Ahead *ahead,
                       float *sums, long row_stride) {
#define CASE(ROWS, WIDE)                                                                      \
    case ROWS:                                                                                \
        if (all_bytes)                                                                        \
            dot_values_of(ROWS, WIDE / 2, 2, levels, num_pages, num_groups, weights,       \
                          ahead, sums, row_stride);                                           \
        else                                                                                  \
            dot_values_of(ROWS, WIDE, 1, levels, num_pages, num_groups, weights, ahead,    \
                          sums, row_stride);                                                  \
        break;
    switch (rows) {
        CASE(1, 8)
        CASE(2, 8)
        CASE(3, 4)
        CASE(4, 4)
        CASE(5, 4)
        CASE(6, 2)
        CASE(7, 2)
        CASE(8, 2)
    }
#undef CASE
}
