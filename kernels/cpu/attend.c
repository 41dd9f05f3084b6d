/* Decode attention on packed pages, in integers, for x86-64 with AVX-512.

   The eager twin, and what everything means, is packed.py. The window is cut into (head, split)
   parts that threads take; parts of a head are merged by their log-sum-exp.

       logit = scale * (q' . levels) + center     q' in two bytes, levels in one
       out   = sum of p * scale * levels          p in one byte of a tile's largest, or two

   Fast because codes become bytes by a shift and a look-up, four channels or four tokens are
   multiplied and added by one instruction, and one reading of the codes serves all query rows. */
#include <immintrin.h>
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "layout.h"
#include "merge.h"
#include "tile.h"

enum {
    DONE = 0, NO_MEMORY = -1,
    BAD_ROW = 1, BAD_STRETCH = 2, BAD_PHASE = 3, BAD_BEGIN = 4, BAD_END = 5,
};

/* Fewer tokens than this are not worth another thread. */
enum { LEAST_PART_TOKENS = 1024 };

static void *aligned(size_t nbytes) { return aligned_alloc(64, (nbytes + 63) & ~(size_t)63); }

/* (H, R): lengths of the queries. */
static float *query_norms(const Layer *layer, const Window *window) {
    long rows = (long)layer->num_heads * window->num_rows, size = layer->head_dim;
    float *norms = malloc((rows + 1) * sizeof(float));
    for (long row = 0; norms && row < rows; row++) {
        double sum = 0.0;
        for (long d = 0; d < size; d++)
            sum += (double)window->queries[row * size + d] * window->queries[row * size + d];
        norms[row] = (float)sqrt(sum);
    }
    return norms;
}

/* What is wrong with a table, and in which of its pages. */
static int find_fault(const Window *window, int32_t *where) {
    for (int32_t p = 0; p < window->num_pages; p++) {
        int32_t stretch = window->stretches[p];
        *where = p;
        if (window->rows[p] < 0 || window->rows[p] >= window->capacity) return BAD_ROW;
        if (stretch < 0 || stretch >= window->num_stretches) return BAD_STRETCH;
        if (window->phases[p] < 0 || window->phases[p] >= STRETCH_PAGES) return BAD_PHASE;
        if (window->begins[p] < 0 || window->begins[p] >= PAGE_TOKENS) return BAD_BEGIN;
        if (window->ends[p] <= window->begins[p] || window->ends[p] > PAGE_TOKENS) return BAD_END;
    }
    return DONE;
}

/* The stretches some row may see, of the pages some row may see. Returns how many. */
static int32_t find_stretches(const Window *window, Stretch *stretches) {
    int64_t low = INT64_MAX, high = INT64_MIN;
    for (int32_t r = 0; r < window->num_rows; r++) {
        int64_t from = window->limits[2 * r], to = window->limits[2 * r + 1];
        if (from >= to) continue;
        low = from < low ? from : low;
        high = to > high ? to : high;
    }
    int32_t num_stretches = 0;
    for (int32_t p = 0; p < window->num_pages; p++) {
        int64_t start = window->starts[p];
        if (start + window->begins[p] >= high || start + window->ends[p] <= low) continue;
        Stretch *last = stretches + num_stretches - 1;
        if (!num_stretches || last->stretch != window->stretches[p] ||
            last->num_pages == STRETCH_PAGES ||
            window->phases[last->pages[last->num_pages - 1]] >= window->phases[p]) {
            last = stretches + num_stretches++;
            last->stretch = window->stretches[p];
            last->num_pages = 0;
        }
        last->pages[last->num_pages++] = p;
    }
    return num_stretches;
}

/* Gather the next whole stretches that fit a tile. Returns how many. */
static int32_t next_tile(const Window *window, const Stretch *stretches, int32_t num_stretches,
                         Scratch *scratch) {
    int32_t taken = 0;
    scratch->num_pages = 0;
    while (taken < num_stretches &&
           scratch->num_pages + stretches[taken].num_pages <= TILE_PAGES) {
        for (int p = 0; p < stretches[taken].num_pages; p++) {
            int32_t page = stretches[taken].pages[p];
            scratch->pages[scratch->num_pages] = page;
            scratch->records[scratch->num_pages++] =
                window->pages + window->rows[page] * window->page_stride;
        }
        taken++;
    }
    return taken;
}

/* Where the tile after this one lies. */
static void look_ahead(const Layer *layer, const Window *window, int head_index,
                       const Stretch *stretches, int32_t num_stretches, Scratch *scratch) {
    const Head *head = layer->heads + head_index;
    Ahead *ahead = &scratch->ahead;
    int32_t page = 0;
    for (int32_t s = 0; s < num_stretches; s++)
        for (int p = 0; p < stretches[s].num_pages && page < TILE_PAGES; p++, page++) {
            const uint8_t *record =
                window->pages + window->rows[stretches[s].pages[p]] * window->page_stride;
            ahead->keys[page] = record + 64L * head->key_word;
            ahead->values[page] = record + 64L * head->value_word;
            /* Those of values lie beside them. */
            if (layer->token_scales) fetch(record + head->key_scales, 0);
        }
    for (; page < TILE_PAGES && page; page++) {
        ahead->keys[page] = ahead->keys[page - 1];
        ahead->values[page] = ahead->values[page - 1];
    }
    ahead->key_lines = num_stretches ? head->key_words : 0;
    ahead->value_lines = num_stretches ? head->value_words : 0;
}

/* Where the stretches of part `part` of `num_parts` begin. */
static int32_t part_begin(int32_t num_stretches, int32_t part, int32_t num_parts) {
    return (int32_t)((int64_t)num_stretches * part / num_parts);
}

static int32_t count_parts(const Window *window, int32_t num_stretches, int32_t others) {
    int64_t most = (int64_t)num_stretches * STRETCH_TOKENS / LEAST_PART_TOKENS;
    int64_t wanted = window->num_threads <= 1 ? 1 : (2 * window->num_threads + others - 1) / others;
    return (int32_t)(wanted < most ? wanted : most > 1 ? most : 1);
}

/* Which positions every row sees. */
static void see_all(const Window *window, Scratch *scratch) {
    scratch->last_low = INT32_MIN, scratch->first_high = INT32_MAX;
    for (int32_t r = 0; r < window->num_rows; r++) {
        int32_t low = window->limits[2 * r], high = window->limits[2 * r + 1];
        if (low > scratch->last_low) scratch->last_low = low;
        if (high < scratch->first_high) scratch->first_high = high;
    }
    memset(scratch->no_center, 0, sizeof scratch->no_center);
}

/* The sum of four times four channels. */
INLINE __m128 four_sums(const float *parts) {
    return _mm_add_ps(_mm_add_ps(_mm_load_ps(parts), _mm_load_ps(parts + 4)),
                      _mm_add_ps(_mm_load_ps(parts + 8), _mm_load_ps(parts + 12)));
}

/* One part of one head. */
static void attend_part(const Layer *layer, const Window *window, int head_index,
                        const Stretch *stretches, int32_t num_stretches, Scratch *scratch,
                        float *values, float *partial) {
    int num_groups = layer->heads[head_index].value_groups;
    long size = partial_size(layer), rows = window->num_rows;
    long padded = (rows + 15) & ~15L;
    Sums sums = {values, values + padded, values + padded + 16 * rows};
    for (long r = 0; r < padded; r++) sums.maxima[r] = UNSEEN;
    memset(sums.totals, 0, rows * 16 * (1 + num_groups) * sizeof(float));
    see_all(window, scratch);
    for (int32_t begin = 0; begin < num_stretches;) {
        int32_t taken = next_tile(window, stretches + begin, num_stretches - begin, scratch);
        int32_t rest = num_stretches - begin - taken;
        look_ahead(layer, window, head_index, stretches + begin + taken,
                   rest < TILE_PAGES ? rest : TILE_PAGES, scratch);
        attend_tile(layer, window, head_index, stretches + begin, taken, scratch, &sums);
        begin += taken;
    }
    for (long r = 0; r < rows; r++, partial += size) {
        partial[0] = sums.maxima[r];
        partial[1] = _mm512_reduce_add_ps(_mm512_load_ps(sums.totals + r * 16));
        const float *parts = sums.values + r * num_groups * 16;
        for (int g = 0; g < num_groups; g++, parts += 16)
            _mm_storeu_ps(partial + 16 + g * GROUP_CHANNELS, four_sums(parts));
        for (int c = num_groups * GROUP_CHANNELS; c < layer->value_channels; c++)
            partial[16 + c] = 0.0f;
    }
}

/* out (H, R, D), log_sum_exp (H, R). Returns DONE or what is wrong; `where` is the page. */
int agentmem_attend(const Layer *layer, const Window *window, float *out, float *log_sum_exp,
                    int32_t *where) {
    int fault = find_fault(window, where);
    if (fault) return fault;
    Stretch *stretches = malloc((window->num_pages + 1) * sizeof(Stretch));
    if (!stretches) return NO_MEMORY;
    int32_t num_stretches = find_stretches(window, stretches);
    int32_t heads = layer->num_heads, rows = window->num_rows;
    int32_t num_parts = count_parts(window, num_stretches, heads);
    long partial = (long)rows * partial_size(layer);
    float *partials = malloc((size_t)num_parts * heads * partial * sizeof(float));
    float *norms = query_norms(layer, window);
    int failed = !partials || !norms;
    int num_items = heads * num_parts;
    int num_threads = window->num_threads < num_items ? window->num_threads : num_items;
    if ((int64_t)num_stretches * STRETCH_TOKENS * heads < LEAST_PART_TOKENS) num_threads = 1;
    size_t num_values = (size_t)rows * (17 + 4 * layer->value_channels) + 16;
    if (!failed) {
#pragma omp parallel num_threads(num_threads) if (num_threads > 1)
        {
            Scratch *scratch = aligned(sizeof(Scratch));
            float *values = aligned(num_values * sizeof(float));
            if (!scratch || !values) {
#pragma omp atomic write
                failed = 1;
            } else {
                scratch->norms = norms;
            }
#pragma omp for schedule(dynamic, 1)
            for (int32_t item = 0; item < num_items; item++) {
                if (!scratch || !values) continue;
                int32_t head = item / num_parts, part = item % num_parts;
                int32_t begin = part_begin(num_stretches, part, num_parts);
                int32_t end = part_begin(num_stretches, part + 1, num_parts);
                attend_part(layer, window, head, stretches + begin, end - begin, scratch, values,
                            partials + ((long)part * heads + head) * partial);
            }
            free(scratch);
            free(values);
        }
    }
    if (!failed) merge(layer, window, num_parts, partials, out, log_sum_exp);
    free(norms);
    free(partials);
    free(stretches);
    return failed ? NO_MEMORY : DONE;
}

/* mass (P * 16), which must come as zeros; log_sum_exp (H, R). Returns as agentmem_attend does. */
int agentmem_column_mass(const Layer *layer, const Window *window, const float *log_sum_exp,
                         float *mass, int32_t *where) {
    int fault = find_fault(window, where);
    if (fault) return fault;
    Stretch *stretches = malloc((window->num_pages + 1) * sizeof(Stretch));
    if (!stretches) return NO_MEMORY;
    int32_t num_stretches = find_stretches(window, stretches);
    int32_t num_parts = count_parts(window, num_stretches, 1);
    float *norms = query_norms(layer, window);
    int failed = !norms;
    /* A part owns its pages' columns and goes through all heads: no two threads add to one. */
#pragma omp parallel num_threads(num_parts) if (num_parts > 1)
    {
        Scratch *scratch = aligned(sizeof(Scratch));
        if (!scratch) {
#pragma omp atomic write
            failed = 1;
        } else {
            scratch->norms = norms;
        }
#pragma omp for schedule(dynamic, 1)
        for (int32_t part = 0; part < num_parts; part++) {
            int32_t end = part_begin(num_stretches, part + 1, num_parts);
            int32_t begin = part_begin(num_stretches, part, num_parts);
            while (scratch && norms && begin < end) {
                int32_t taken = next_tile(window, stretches + begin, end - begin, scratch);
                scratch->ahead.key_lines = 0;
                see_all(window, scratch);
                for (int head = 0; head < layer->num_heads; head++)
                    weigh_columns(layer, window, head, stretches + begin, taken,
                                  log_sum_exp + (long)head * window->num_rows, scratch, mass);
                begin += taken;
            }
        }
        free(scratch);
    }
    free(norms);
    free(stretches);
    return failed ? NO_MEMORY : DONE;
}
