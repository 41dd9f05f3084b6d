/* A query at one stretch: turned back by its start, projected to the channels that have bits, and
   rounded to integers. */
#pragma once

#include <immintrin.h>
#include <math.h>
#include <stdint.h>

#include "dots.h"
#include "layout.h"
#include "matrices.h"
#include "vectors.h"

/* Consecutive pages of one stretch that some row may see. */
typedef struct {
    int32_t stretch, num_pages;
    int32_t pages[STRETCH_PAGES];
} Stretch;

/* Up to eight rows: those of one stretch follow each other. */
typedef struct {
    _Alignas(64) float turned[BLOCK_ROWS][MAX_DIM];
    ShortRows shorts;
    _Alignas(64) float projected[BLOCK_ROWS][MAX_DIM];
    _Alignas(64) float center_logits[BLOCK_ROWS][STRETCH_TOKENS];
    IntegerQuery integers;
} StretchQuery;

/* Channels 2i and 2i + 1 are a complex number, multiplied by that of the rotation. */
INLINE void turn(const float *query, const float *rotation, int head_dim, float *turned) {
    for (int d = 0; d < head_dim; d += 16) {
        __mmask16 inside = first_lanes(head_dim - d);
        __m512 x = _mm512_maskz_loadu_ps(inside, query + d);
        __m512 angle = _mm512_maskz_loadu_ps(inside, rotation + d);
        __m512 swapped = _mm512_permute_ps(x, 0xb1);
        __m512 crossed = _mm512_mul_ps(swapped, _mm512_movehdup_ps(angle));
        _mm512_store_ps(turned + d, _mm512_fmaddsub_ps(x, _mm512_moveldup_ps(angle), crossed));
    }
}

/* Sums and differences of all pairs of channels that differ in one bit, bit by bit: a block of
   VECTORS * 16 channels in registers, times factors before and after. */
INLINE void transform_block(const int VECTORS, const float *x, const float *before,
                            const float *after, float *out) {
    const __m512 ones = _mm512_set1_ps(1.0f), minus = _mm512_set1_ps(-1.0f);
    const __m512 bit0 = _mm512_mask_mov_ps(ones, 0xaaaa, minus);
    const __m512 bit1 = _mm512_mask_mov_ps(ones, 0xcccc, minus);
    const __m512 bit2 = _mm512_mask_mov_ps(ones, 0xf0f0, minus);
    const __m512 bit3 = _mm512_mask_mov_ps(ones, 0xff00, minus);
    __m512 y[16];
    UNROLL
    for (int v = 0; v < VECTORS; v++) {
        y[v] = _mm512_mul_ps(_mm512_load_ps(x + v * 16), _mm512_loadu_ps(before + v * 16));
        y[v] = _mm512_fmadd_ps(y[v], bit0, _mm512_permute_ps(y[v], 0xb1));
        y[v] = _mm512_fmadd_ps(y[v], bit1, _mm512_permute_ps(y[v], 0x4e));
        y[v] = _mm512_fmadd_ps(y[v], bit2, _mm512_shuffle_f32x4(y[v], y[v], 0xb1));
        y[v] = _mm512_fmadd_ps(y[v], bit3, _mm512_shuffle_f32x4(y[v], y[v], 0x4e));
    }
    UNROLL
    for (int half = 1; half < VECTORS; half *= 2)
        UNROLL
        for (int v = 0; v < VECTORS; v++)
            if (!(v & half)) {
                __m512 low = y[v], high = y[v + half];
                y[v] = _mm512_add_ps(low, high);
                y[v + half] = _mm512_sub_ps(low, high);
            }
    UNROLL
    for (int v = 0; v < VECTORS; v++)
        _mm512_store_ps(out + v * 16, _mm512_mul_ps(y[v], _mm512_loadu_ps(after + v * 16)));
}

/* In blocks of the largest power of two that divides the size; `factors` (2, size). */
static void walsh_hadamard(const float *x, int size, const float *factors, float *out) {
    const int block = size & -size;
    for (int d = 0; d < size; d += block)
        switch (block) {
        case 16: transform_block(1, x + d, factors + d, factors + size + d, out + d); break;
        case 32: transform_block(2, x + d, factors + d, factors + size + d, out + d); break;
        case 64: transform_block(4, x + d, factors + d, factors + size + d, out + d); break;
        case 128: transform_block(8, x + d, factors + d, factors + size + d, out + d); break;
        case 256: transform_block(16, x + d, factors + d, factors + size + d, out + d); break;
        }
}

INLINE void scale_channels(const float *x, const float *factors, int size, float *out) {
    for (int d = 0; d < size; d += 16) {
        __mmask16 inside = first_lanes(size - d);
        __m512 factor = _mm512_maskz_loadu_ps(inside, factors + d);
        _mm512_store_ps(out + d, _mm512_mul_ps(_mm512_load_ps(x + d), factor));
    }
}

static void project_channels(const Layer *layer, int head_index, const float *turned,
                             float *projected) {
    int size = layer->head_dim, num_groups = layer->heads[head_index].key_groups;
    const int32_t *places = layer->key_group_places + (long)head_index * (size / GROUP_CHANNELS);
    if (layer->projection_kind == PROJECT_HADAMARD) {
        walsh_hadamard(turned, size, layer->projection + (long)head_index * 2 * size, projected);
    } else {
        scale_channels(turned, layer->projection + (long)head_index * size, size, projected);
    }
    if (num_groups == size / GROUP_CHANNELS) return;
    /* A group never moves up, so that moving in order is safe. */
    for (int group = 0; group < num_groups; group++)
        _mm_store_ps(projected + group * GROUP_CHANNELS,
                     _mm_load_ps(projected + places[group] * GROUP_CHANNELS));
    for (int c = num_groups * GROUP_CHANNELS; c & 15; c++) projected[c] = 0.0f;
}

/* `size` channels of every row, a multiple of 16, as integers. */
static void round_queries(float (*x)[MAX_DIM], int size, int rows, IntegerQuery *query) {
    const __m512 zero = _mm512_setzero_ps();
    __m512 largest[BLOCK_ROWS];
    __m512i sums[2][BLOCK_ROWS];
    __mmask16 poisoned = 0;
    for (int r = 0; r < BLOCK_ROWS; r++) largest[r] = zero;
    for (int r = 0; r < rows; r++) {
        __m512 poison = zero;
        for (int c = 0; c < size; c += 16) {
            __m512 value = _mm512_load_ps(x[r] + c);
            largest[r] = _mm512_max_ps(largest[r], _mm512_abs_ps(value));
            poison = _mm512_fmadd_ps(value, zero, poison);
        }
        if (_mm512_cmp_ps_mask(poison, poison, _CMP_UNORD_Q)) poisoned |= 1 << r;
    }
    __m512 scales = _mm512_mul_ps(largest_of_rows(largest, rows), _mm512_set1_ps(1.0f / 127.0f));
    __mmask16 above = _mm512_cmp_ps_mask(scales, zero, _CMP_GT_OQ);
    _Alignas(64) float inverses[16];
    _mm512_store_ps(inverses, _mm512_maskz_div_ps(above, _mm512_set1_ps(1.0f), scales));
    /* Integers cannot carry NaN or infinity; the scale can. */
    scales = _mm512_mask_mov_ps(scales, poisoned, _mm512_set1_ps(NAN));
    _mm512_store_ps(query->scales, scales);
    const __m512i many = _mm512_set1_epi8((char)128);
    for (int r = 0; r < rows; r++) {
        __m512 inverse = _mm512_set1_ps(inverses[r]);
        int8_t *coarse_codes = query->codes[r][0], *fine_codes = query->codes[r][1];
        for (int c = 0; c < size; c += 16) {
            __m512 value = _mm512_mul_ps(_mm512_load_ps(x[r] + c), inverse);
            __m512i coarse = _mm512_cvtps_epi32(value);
            __m512 rest = _mm512_sub_ps(value, _mm512_cvtepi32_ps(coarse));
            __m512i fine = _mm512_cvtps_epi32(_mm512_mul_ps(rest, _mm512_set1_ps(254.0f)));
            _mm_store_si128((__m128i *)(coarse_codes + c), _mm512_cvtsepi32_epi8(coarse));
            _mm_store_si128((__m128i *)(fine_codes + c), _mm512_cvtsepi32_epi8(fine));
        }
    }
    for (int r = 0; r < BLOCK_ROWS; r++)
        for (int term = 0; term < 2; term++) {
            sums[term][r] = _mm512_setzero_si512();
            if (r >= rows) continue;
            for (int c = 0; c < size; c += 64) {
                __mmask64 inside = size - c >= 64 ? ~0ull : (1ull << (size - c)) - 1;
                __m512i codes = _mm512_maskz_loadu_epi8(inside, query->codes[r][term] + c);
                sums[term][r] = add_products(sums[term][r], many, codes);
            }
        }
    for (int term = 0; term < 2; term++) {
        __m512i added = sums_of_4(sums[term]);
        if (rows > 4) added = _mm512_mask_mov_epi32(added, 0xfff0, sums_of_4(sums[term] + 4));
        _mm512_store_si512(query->offsets[term],
                           _mm512_sub_epi32(_mm512_setzero_si512(), added));
    }
}

/* 16-bit codes of turned rows; the norm of a row is that before it was turned. */
static void shorten(const StretchQuery *query, int rows, int size, const float *norms,
                    int rows_of_stretch, ShortRows *shorts) {
    for (int r = 0; r < rows; r++) {
        float norm = norms[r % rows_of_stretch];
        shorts->scales[r] = norm / 32767.0f;
        __m512 inverse = _mm512_set1_ps(norm > 0.0f ? 32767.0f / norm : 0.0f);
        for (int d = 0; d < size; d += 16) {
            __m512 value = _mm512_mul_ps(_mm512_load_ps(query->turned[r] + d), inverse);
            __m256i codes = _mm512_cvtsepi32_epi16(_mm512_cvtps_epi32(value));
            _mm256_store_si256((__m256i *)(shorts->codes[r] + d), codes);
        }
    }
}

/* Whether 16 bits are enough for rows of these norms; not for NaN or infinity. */
static int may_shorten(const ShortMatrix *matrix, int head_index, const float *norms, int rows) {
    float largest = 0.0f;
    for (int r = 0; r < rows; r++)
        if (!(norms[r] <= largest)) largest = norms[r];
    return largest * matrix->norms[head_index] * SHORT_ERROR < SHORT_TOLERANCE;
}

/* Ask `rows` rows from `first_row` on at a few stretches: row r at stretch s becomes row
   s * rows + r. `norms` are those of the head's rows. */
static void ask(const Layer *layer, const Window *window, int head_index, int first_row, int rows,
                const Stretch *stretches, int num_stretches, const float *norms,
                StretchQuery *query) {
    int size = layer->head_dim, num_phases = 0, all = rows * num_stretches;
    const float *queries =
        window->queries + ((long)head_index * window->num_rows + first_row) * size;
    norms += first_row;
    for (int s = 0; s < num_stretches; s++) {
        const Stretch *stretch = stretches + s;
        const float *rotation = window->rotations + (long)stretch->stretch * size;
        for (int r = 0; r < rows; r++)
            turn(queries + (long)r * size, rotation, size, query->turned[s * rows + r]);
        int phases = window->phases[stretch->pages[stretch->num_pages - 1]] + 1;
        num_phases = phases > num_phases ? phases : num_phases;
    }
    int is_matrix = layer->projection_kind == PROJECT_MATRIX;
    int short_center = layer->center && may_shorten(&layer->short_center, head_index, norms, rows);
    int short_projection =
        is_matrix && may_shorten(&layer->short_projection, head_index, norms, rows);
    if (short_center || short_projection)
        shorten(query, all, size, norms, rows, &query->shorts);
    if (short_center)
        multiply_short(all, &query->shorts, &layer->short_center, head_index, STRETCH_TOKENS, size,
                       num_phases * PAGE_TOKENS, query->center_logits[0], STRETCH_TOKENS);
    else if (layer->center)
        multiply(all, query->turned[0], MAX_DIM,
                 layer->center + (long)head_index * size * STRETCH_TOKENS, STRETCH_TOKENS, size,
                 num_phases * PAGE_TOKENS, query->center_logits[0], STRETCH_TOKENS);
    int columns = layer->key_channels;
    if (short_projection)
        multiply_short(all, &query->shorts, &layer->short_projection, head_index, columns, size,
                       columns, query->projected[0], MAX_DIM);
    else if (is_matrix)
        multiply(all, query->turned[0], MAX_DIM,
                 layer->projection + (long)head_index * size * columns, columns, size, columns,
                 query->projected[0], MAX_DIM);
    else
        for (int r = 0; r < all; r++)
            project_channels(layer, head_index, query->turned[r], query->projected[r]);
    int channels = layer->heads[head_index].key_groups * GROUP_CHANNELS;
    round_queries(query->projected, (channels + 15) & ~15, all, &query->integers);
}
