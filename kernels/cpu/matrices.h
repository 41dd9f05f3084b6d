/* Products of up to eight rows with a matrix, rows kept in registers: in floats, and at half the
   cost in 16-bit integers where their rounding does not show. */
#pragma once

#include <immintrin.h>
#include <stdint.h>
#include <string.h>

#include "layout.h"
#include "vectors.h"

/* out[r] = left[r] @ right for ROWS rows and COLUMNS * 16 columns, all in registers. */
INLINE void multiply_block(const int ROWS, const int COLUMNS, const float *left, long left_stride,
                           const float *right, long right_stride, int depth, float *out,
                           long out_stride) {
    __m512 sums[BLOCK_ROWS][4];
    UNROLL
    for (int r = 0; r < ROWS; r++)
        UNROLL
        for (int c = 0; c < COLUMNS; c++) sums[r][c] = _mm512_setzero_ps();
    for (int d = 0; d < depth; d++) {
        __m512 columns[4];
        UNROLL
        for (int c = 0; c < COLUMNS; c++)
            columns[c] = _mm512_loadu_ps(right + d * right_stride + c * 16);
        UNROLL
        for (int r = 0; r < ROWS; r++) {
            __m512 factor = _mm512_set1_ps(left[r * left_stride + d]);
            UNROLL
            for (int c = 0; c < COLUMNS; c++)
                sums[r][c] = _mm512_fmadd_ps(factor, columns[c], sums[r][c]);
        }
    }
    UNROLL
    for (int r = 0; r < ROWS; r++)
        UNROLL
        for (int c = 0; c < COLUMNS; c++)
            _mm512_storeu_ps(out + r * out_stride + c * 16, sums[r][c]);
}

INLINE void multiply_rows(const int ROWS, const int WIDE, const float *left, long left_stride,
                          const float *right, long right_stride, int depth, int columns,
                          float *out, long out_stride) {
    int c = 0;
    for (; c + WIDE * 16 <= columns; c += WIDE * 16)
        multiply_block(ROWS, WIDE, left, left_stride, right + c, right_stride, depth, out + c,
                       out_stride);
    if (WIDE > 3 && columns - c >= 48) {
        multiply_block(ROWS, 3, left, left_stride, right + c, right_stride, depth, out + c,
                       out_stride);
        c += 48;
    }
    if (columns - c >= 32) {
        multiply_block(ROWS, 2, left, left_stride, right + c, right_stride, depth, out + c,
                       out_stride);
        c += 32;
    }
    if (columns - c >= 16)
        multiply_block(ROWS, 1, left, left_stride, right + c, right_stride, depth, out + c,
                       out_stride);
}

/* out (rows, columns) = left (rows, depth) @ right (depth, columns); columns a multiple of 16. */
static void multiply(int rows, const float *left, long left_stride, const float *right,
                     long right_stride, int depth, int columns, float *out, long out_stride) {
#define CASE(ROWS, WIDE)                                                                       \
    case ROWS:                                                                                 \
        multiply_rows(ROWS, WIDE, left, left_stride, right, right_stride, depth, columns, out, \
                      out_stride);                                                             \
        break;
    switch (rows) {
        CASE(1, 4)
        CASE(2, 4)
        CASE(3, 4)
        CASE(4, 4)
        CASE(5, 4)
        CASE(6, 4)
        CASE(7, 3)
        CASE(8, 3)
    }
#undef CASE
}

/* Rows as 16-bit integers: value = scale * code. Codes of a row, and of a column of the matrix,
   have a norm of 32767: by Cauchy and Schwarz no sum of products leaves 32 bits, and rounding is
   off by 1e-5 of the product of the norms. */
typedef struct {
    _Alignas(64) int16_t codes[BLOCK_ROWS][MAX_DIM];
    float scales[BLOCK_ROWS];
} ShortRows;

/* What that error is of row's and column's norms at most, nearly always, and what of a logit it may
   be: codes of eight bits are off by more. */
#define SHORT_ERROR 2e-5f
#define SHORT_TOLERANCE 2.5e-3f

INLINE void multiply_short_block(const int ROWS, const int COLUMNS, const ShortRows *left,
                                 const int16_t *right, long right_stride, int depth,
                                 const float *scales, float *out, long out_stride) {
    __m512i sums[BLOCK_ROWS][4];
    UNROLL
    for (int r = 0; r < ROWS; r++)
        UNROLL
        for (int c = 0; c < COLUMNS; c++) sums[r][c] = _mm512_setzero_si512();
    for (int d = 0; d < depth; d += 2, right += right_stride) {
        __m512i columns[4];
        UNROLL
        for (int c = 0; c < COLUMNS; c++) columns[c] = _mm512_loadu_si512(right + c * 32);
        UNROLL
        for (int r = 0; r < ROWS; r++) {
            int32_t two;
            memcpy(&two, left->codes[r] + d, 4);
            __m512i pair = _mm512_set1_epi32(two);
            UNROLL
            for (int c = 0; c < COLUMNS; c++)
                sums[r][c] = add_short_products(sums[r][c], columns[c], pair);
        }
    }
    UNROLL
    for (int r = 0; r < ROWS; r++)
        UNROLL
        for (int c = 0; c < COLUMNS; c++) {
            __m512 scale = _mm512_mul_ps(_mm512_set1_ps(left->scales[r]),
                                         _mm512_loadu_ps(scales + c * 16));
            _mm512_store_ps(out + r * out_stride + c * 16,
                            _mm512_mul_ps(_mm512_cvtepi32_ps(sums[r][c]), scale));
        }
}

INLINE void multiply_short_rows(const int ROWS, const int WIDE, const ShortRows *left,
                                const int16_t *right, long right_stride, int depth,
                                const float *scales, int columns, float *out, long out_stride) {
#define BLOCK(COLUMNS)                                                                        \
    multiply_short_block(ROWS, COLUMNS, left, right + c * 2, right_stride, depth, scales + c, \
                         out + c, out_stride)
    int c = 0;
    for (; c + WIDE * 16 <= columns; c += WIDE * 16) BLOCK(WIDE);
    if (WIDE > 3 && columns - c >= 48) {
        BLOCK(3);
        c += 48;
    }
    if (WIDE > 2 && columns - c >= 32) {
        BLOCK(2);
        c += 32;
    }
    if (columns - c >= 16) BLOCK(1);
#undef BLOCK
}

/* As `multiply`; `stride` is the matrix's number of columns, of which the first `columns` count. */
static void multiply_short(int rows, const ShortRows *left, const ShortMatrix *right,
                           int head_index, int stride, int depth, int columns, float *out,
                           long out_stride) {
    const int16_t *pairs = right->pairs + (long)head_index * depth * stride;
    const float *scales = right->scales + (long)head_index * stride;
#define CASE(ROWS, WIDE)                                                                       \
    case ROWS:                                                                                 \
        multiply_short_rows(ROWS, WIDE, left, pairs, 2L * stride, depth, scales, columns, out, \
                            out_stride);                                                       \
        break;
    switch (rows) {
        CASE(1, 4)
        CASE(2, 4)
        CASE(3, 4)
        CASE(4, 4)
        CASE(5, 4)
        CASE(6, 4)
        CASE(7, 2)
        CASE(8, 2)
    }
#undef CASE
}
