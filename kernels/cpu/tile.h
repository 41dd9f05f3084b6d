/* Up to eight pages of one head and up to eight query rows: logits, softmax, weighted values. */
#pragma once

#include <immintrin.h>
#include <math.h>
#include <stdint.h>

#include "codes.h"
#include "dots.h"
#include "layout.h"
#include "merge.h"
#include "query.h"
#include "vectors.h"

/* What one thread works with. */
typedef struct {
    StretchQuery query;
    IntegerWeights weights;
    Finish finish;
    _Alignas(64) float logits[BLOCK_ROWS][TILE_TOKENS];
    _Alignas(64) float key_scales[TILE_TOKENS], value_scales[TILE_TOKENS];
    _Alignas(64) float no_center[PAGE_TOKENS];
    _Alignas(64) uint8_t keys[TILE_PAGES][PAGE_LEVELS];
    _Alignas(64) uint8_t values[TILE_PAGES][PAGE_LEVELS];
    const uint8_t *records[TILE_PAGES], *key_levels[TILE_PAGES], *value_levels[TILE_PAGES];
    int32_t pages[TILE_PAGES];
    int32_t num_pages;
    Ahead ahead;
    int32_t last_low, first_high; /* what every row sees */
    const float *norms;           /* (H, R): of the queries */
} Scratch;

/* Of each row: the largest logit so far, the sum of exponentials under it, the weighted values. */
typedef struct {
    float *maxima; /* (R rounded up to 16,) */
    float *totals; /* (R, 16): in sixteen parts */
    float *values; /* (R, value_groups * 16): in the order of dot_values */
} Sums;

/* Lay the levels of a tile's keys, or of its values, out for the products. */
static void read_levels(const Layer *layer, const Head *head, int values, Scratch *scratch) {
    int all_bytes = head->flags & (values ? 2 : 1);
    int begin = values ? head->value_run : head->key_run;
    int end = values ? head->end_run : head->value_run;
    int first_word = values ? head->value_word : head->key_word;
    uint8_t(*bytes)[PAGE_LEVELS] = values ? scratch->values : scratch->keys;
    const uint8_t **levels = values ? scratch->value_levels : scratch->key_levels;
    for (int p = 0; p < scratch->num_pages; p++)
        levels[p] = all_bytes ? scratch->records[p] + 64L * first_word : bytes[p];
    for (int r = begin; r < end && !all_bytes; r++)
        expand(layer->runs + r, values, layer->is_trellis[values], scratch->records,
               scratch->num_pages,
               values ? layer->value_tables : layer->key_tables,
               bytes[0] + layer->runs[r].first_group * 64);
}

/* The scales of a tile's tokens; ones where they have none. */
static void read_scales(const Layer *layer, const Head *head, Scratch *scratch) {
    for (int p = 0; p < scratch->num_pages; p++) {
        __m512 keys = _mm512_set1_ps(1.0f), values = keys;
        if (layer->token_scales) {
            const uint8_t *record = scratch->records[p];
            keys = _mm512_cvtph_ps(_mm256_loadu_si256((void *)(record + head->key_scales)));
            values = _mm512_cvtph_ps(_mm256_loadu_si256((void *)(record + head->value_scales)));
        }
        _mm512_store_ps(scratch->key_scales + p * PAGE_TOKENS, keys);
        _mm512_store_ps(scratch->value_scales + p * PAGE_TOKENS, values);
        scratch->finish.scales[p] = scratch->key_scales + p * PAGE_TOKENS;
    }
}

/* Token slots of a page that a row may see. */
INLINE __mmask16 seen(const Window *window, int row, int page) {
    int64_t start = window->starts[page], begin = window->begins[page], end = window->ends[page];
    int64_t low = window->limits[2 * row] - start, high = window->limits[2 * row + 1] - start;
    high = high < end ? high : end;
    high = high > 0 ? high : 0;
    low = low < begin ? begin : low < 16 ? low : 16;
    return first_lanes((int)high) & ~first_lanes((int)low);
}

/* Cap a tile's logits, and take out what rows may not see. */
static void mask_logits(const Window *window, int first_row, int rows, Scratch *scratch) {
    for (int p = 0; p < scratch->num_pages; p++) {
        int page = scratch->pages[p];
        int64_t start = window->starts[page];
        int whole = window->begins[page] == 0 && window->ends[page] == PAGE_TOKENS;
        int open = whole && start >= scratch->last_low &&
                   start + PAGE_TOKENS <= scratch->first_high;
        if (open && window->softcap == 0.0f) continue;
        for (int r = 0; r < rows; r++) {
            float *logits = scratch->logits[r] + p * PAGE_TOKENS;
            __m512 x = _mm512_load_ps(logits);
            if (window->softcap != 0.0f) {
                __m512 cap = _mm512_set1_ps(window->softcap);
                x = _mm512_mul_ps(cap, hyperbolic_tangent(_mm512_div_ps(x, cap)));
            }
            __mmask16 inside = open ? 0xffff : seen(window, first_row + r, page);
            _mm512_store_ps(logits, _mm512_mask_mov_ps(_mm512_set1_ps(UNSEEN), inside, x));
        }
    }
}

/* Logits of `rows` rows at the pages of `num_stretches` stretches: a tile. */
static void tile_logits(const Layer *layer, const Window *window, int head_index, int first_row,
                        int rows, const Stretch *stretches, int num_stretches, Scratch *scratch) {
    const Head *head = layer->heads + head_index;
    int num_lines = first_row ? 0 : scratch->ahead.key_lines;
    Finish *finish = &scratch->finish;
    finish->center_stride = layer->center ? STRETCH_TOKENS : 0;
    int tile_page = 0, most = BLOCK_ROWS / rows;
    for (int s = 0; s < num_stretches; s++) {
        if (s % most == 0)
            ask(layer, window, head_index, first_row, rows, stretches + s,
                num_stretches - s < most ? num_stretches - s : most,
                scratch->norms + (long)head_index * window->num_rows, &scratch->query);
        int end = tile_page + stretches[s].num_pages, row = s % most * rows;
        for (int p = tile_page; p < end; p++)
            finish->centers[p] = layer->center ? scratch->query.center_logits[row] +
                                     window->phases[scratch->pages[p]] * PAGE_TOKENS
                                               : scratch->no_center;
        dot_keys(rows, row, scratch->key_levels, tile_page, end, head->key_groups,
                 &scratch->query.integers, finish, scratch->ahead.keys, num_lines,
                 scratch->logits[0], TILE_TOKENS);
        tile_page = end;
    }
    mask_logits(window, first_row, rows, scratch);
}

/* Logits so far below the largest that a tile of them adds less than 1e-8 of what is there. */
#define NEGLIGIBLE 25.0f

/* Weights of 16 tokens as bytes: four tokens beside each of a group's four channels. */
INLINE __m512i four_of_each(__m512i weights) {
    __m512i bytes = _mm512_castsi128_si512(_mm512_cvtusepi32_epi8(weights));
    return _mm512_permutexvar_epi32(
        _mm512_set_epi32(3, 3, 3, 3, 2, 2, 2, 2, 1, 1, 1, 1, 0, 0, 0, 0), bytes);
}

/* Fold a tile's logits into the running softmax; weights become bytes of the tile's largest.
   Returns 0, and folds nothing, if the tile is negligible to every row. */
static int weigh(int first_row, int rows, int two_bytes, Scratch *scratch, Sums *sums) {
    IntegerWeights *weights = &scratch->weights;
    int num_pages = scratch->num_pages;
    __m512 most[BLOCK_ROWS];
    for (int r = 0; r < BLOCK_ROWS; r++) {
        most[r] = _mm512_set1_ps(UNSEEN);
        for (int p = 0; p < num_pages && r < rows; p++)
            most[r] = _mm512_max_ps(most[r], _mm512_load_ps(scratch->logits[r] + p * PAGE_TOKENS));
    }
    __m512 before = _mm512_mask_loadu_ps(_mm512_set1_ps(UNSEEN), first_lanes(rows),
                                         sums->maxima + first_row);
    __m512 tops = largest_of_rows(most, rows);
    __m512 least = _mm512_sub_ps(before, _mm512_set1_ps(NEGLIGIBLE));
    /* "Not less" instead of "greater": NaN matters. */
    __mmask16 matter = _mm512_cmp_ps_mask(tops, least, _CMP_NLT_UQ);
    if (!(matter & first_lanes(rows))) return 0;
    __m512 now = _mm512_max_ps(before, tops);
    __m512 decays = exponential(_mm512_sub_ps(before, now));
    _mm512_store_ps(weights->decays, decays);
    _mm512_mask_storeu_ps(sums->maxima + first_row, first_lanes(rows), now);
    /* A row that has seen nothing subtracts less than its logits: they must not become exp(0). */
    _Alignas(64) float shifts[16], inverses[16];
    _mm512_store_ps(shifts, _mm512_max_ps(now, _mm512_set1_ps(UNSEEN / 2)));
    for (int r = 0; r < rows; r++) {
        __m512 shift = _mm512_set1_ps(shifts[r]), total = _mm512_setzero_ps();
        float *logits = scratch->logits[r];
        most[r] = _mm512_setzero_ps();
        for (int p = 0; p < num_pages; p++) {
            __m512 share = exponential(_mm512_sub_ps(_mm512_load_ps(logits + p * 16), shift));
            total = _mm512_add_ps(total, share);
            share = _mm512_mul_ps(share, _mm512_load_ps(scratch->value_scales + p * 16));
            most[r] = _mm512_max_ps(most[r], share);
            _mm512_store_ps(logits + p * 16, share);
        }
        float *totals = sums->totals + (first_row + r) * 16L;
        __m512 decay = _mm512_set1_ps(weights->decays[r]);
        _mm512_store_ps(totals, _mm512_fmadd_ps(_mm512_load_ps(totals), decay, total));
    }
    __m512 top = largest_of_rows(most, rows);
    __mmask16 above = _mm512_cmp_ps_mask(top, _mm512_setzero_ps(), _CMP_GT_OQ);
    _mm512_store_ps(weights->scales, _mm512_mul_ps(top, _mm512_set1_ps(1.0f / 255.0f)));
    _mm512_store_ps(inverses, _mm512_maskz_div_ps(above, _mm512_set1_ps(255.0f), top));
    for (int r = 0; r < rows; r++) {
        __m512 inverse = _mm512_set1_ps(inverses[r]);
        uint8_t *coarse_codes = weights->codes[r][0], *fine_codes = weights->codes[r][1];
        for (int p = 0; p < num_pages; p++) {
            __m512 share = _mm512_mul_ps(_mm512_load_ps(scratch->logits[r] + p * 16), inverse);
            __m512i coarse = two_bytes ? _mm512_cvttps_epi32(share) : _mm512_cvtps_epi32(share);
            _mm512_store_si512(coarse_codes + p * 64, four_of_each(coarse));
            if (!two_bytes) continue;
            __m512 rest = _mm512_sub_ps(share, _mm512_cvtepi32_ps(coarse));
            __m512i fine = _mm512_cvtps_epi32(_mm512_mul_ps(rest, _mm512_set1_ps(255.0f)));
            _mm512_store_si512(fine_codes + p * 64, four_of_each(fine));
        }
    }
    return 1;
}

/* One tile for all rows. */
static void attend_tile(const Layer *layer, const Window *window, int head_index,
                        const Stretch *stretches, int num_stretches, Scratch *scratch,
                        Sums *sums) {
    const Head *head = layer->heads + head_index;
    long row_stride = head->value_groups * 16;
    int values_read = 0;
    read_levels(layer, head, 0, scratch);
    read_scales(layer, head, scratch);
    for (int first = 0; first < window->num_rows; first += BLOCK_ROWS) {
        int rows = window->num_rows - first < BLOCK_ROWS ? window->num_rows - first : BLOCK_ROWS;
        tile_logits(layer, window, head_index, first, rows, stretches, num_stretches, scratch);
        if (!weigh(first, rows, head->flags & 2, scratch, sums)) continue;
        if (!values_read) read_levels(layer, head, 1, scratch);
        values_read = 1;
        dot_values(rows, head->flags & 2, scratch->value_levels, scratch->num_pages,
                   head->value_groups, &scratch->weights, &scratch->ahead,
                   sums->values + first * row_stride, row_stride);
    }
}

/* Add the probabilities a tile's tokens receive to `mass` (P * 16). */
static void weigh_columns(const Layer *layer, const Window *window, int head_index,
                          const Stretch *stretches, int num_stretches, const float *log_sum_exp,
                          Scratch *scratch, float *mass) {
    const Head *head = layer->heads + head_index;
    read_levels(layer, head, 0, scratch);
    read_scales(layer, head, scratch);
    for (int first = 0; first < window->num_rows; first += BLOCK_ROWS) {
        int rows = window->num_rows - first < BLOCK_ROWS ? window->num_rows - first : BLOCK_ROWS;
        tile_logits(layer, window, head_index, first, rows, stretches, num_stretches, scratch);
        for (int r = 0; r < rows; r++) {
            /* A row that saw nothing anywhere has minus infinity; all its logits are UNSEEN. */
            __m512 shift = _mm512_set1_ps(fmaxf(log_sum_exp[first + r], UNSEEN / 2));
            for (int p = 0; p < scratch->num_pages; p++) {
                float *column = mass + (long)scratch->pages[p] * PAGE_TOKENS;
                __m512 x = _mm512_load_ps(scratch->logits[r] + p * PAGE_TOKENS);
                __m512 share = exponential(_mm512_sub_ps(x, shift));
                _mm512_storeu_ps(column, _mm512_add_ps(_mm512_loadu_ps(column), share));
            }
        }
    }
}
