/* Decode attention on pages of floats, and on rows of keys and values as a model writes them.

   Several sources are attended to in one call, and merged with what others attended to before.

   Four query rows and a page of 16 tokens at a time: their 64 logits are four vectors, lane
   4 * (token % 4) + row of vector token / 4. The softmax runs on; parts of a head are merged. */
#include <immintrin.h>
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "vectors.h"

enum { PAGE = 16, BLOCK = 4, WIDEST = 256, LEAST_PART_PAGES = 64 };
enum { DONE = 0, NO_MEMORY = -1, BAD_ROW = 1, BAD_STRETCH = 2, BAD_BEGIN = 4, BAD_END = 5 };
enum { FLOAT32, BFLOAT16, FLOAT16 };
#define UNSEEN (-1e30f)

/* Mirrored in cpu_dense.py. A token's channels are side by side, a head's tokens too. */
typedef struct {
    const float *queries;   /* (H, R, D) */
    const float *rotations; /* (S, D): cosine and sine of each pair; NULL: nothing is turned */
    const int32_t *rows, *stretches, *phases, *starts, *begins, *ends; /* (P,) */
    const uint8_t *keys, *values;
    const int32_t *limits;            /* (R, 2) */
    int64_t page_stride, head_stride; /* bytes */
    int64_t num_tokens;               /* no token of row r lies beyond: r * 16 + end */
    int32_t num_heads, num_rows, head_dim, num_pages, num_stretches, num_threads, dtype;
    float softcap; /* 0: none */
} Dense;

enum { MOST_SOURCES = 4, MOST_PARTS = 8 };

/* Sources of the same heads and rows, and parts that were attended to already. */
typedef struct {
    const Dense *sources[MOST_SOURCES];
    float *masses[MOST_SOURCES];         /* (P * 16) of each source, for its mass */
    const float *values[MOST_PARTS];     /* (H, R, D) */
    const float *log_sum_exp[MOST_PARTS]; /* (H, R) */
    int32_t num_sources, num_parts;
} Whole;

/* Four rows of queries at one stretch, their limits, and what they have seen. */
typedef struct {
    _Alignas(64) float turned[BLOCK][WIDEST];
    _Alignas(64) float mixed[BLOCK][WIDEST];
    __m512 maxima, totals; /* lane r of each 128 bits */
    __m512i low, high;
} Block;

INLINE __m512 load_channels(const uint8_t *states, int d, const int DTYPE) {
    if (DTYPE == FLOAT32) return _mm512_loadu_ps(states + 4 * d);
    __m256i halves = _mm256_loadu_si256((const void *)(states + 2 * d));
    if (DTYPE == FLOAT16) return _mm512_cvtph_ps(halves);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16));
}

/* Lane r: the sum of all lanes of x[r]. */
INLINE __m128 sums_of_rows(const __m512 *x) {
    __m512 a = _mm512_add_ps(_mm512_unpacklo_ps(x[0], x[1]), _mm512_unpackhi_ps(x[0], x[1]));
    __m512 b = _mm512_add_ps(_mm512_unpacklo_ps(x[2], x[3]), _mm512_unpackhi_ps(x[2], x[3]));
    __m512 c = _mm512_add_ps(low_pairs(a, b), high_pairs(a, b));
    __m256 d = _mm256_add_ps(_mm512_castps512_ps256(c), _mm512_extractf32x8_ps(c, 1));
    return _mm_add_ps(_mm256_castps256_ps128(d), _mm256_extractf128_ps(d, 1));
}

/* Every 128 bits: the four combined. */
INLINE __m512 largest_of_tokens(__m512 x) {
    x = _mm512_max_ps(x, _mm512_shuffle_f32x4(x, x, 0x4e));
    return _mm512_max_ps(x, _mm512_shuffle_f32x4(x, x, 0xb1));
}

INLINE __m512 sum_of_tokens(__m512 x) {
    x = _mm512_add_ps(x, _mm512_shuffle_f32x4(x, x, 0x4e));
    return _mm512_add_ps(x, _mm512_shuffle_f32x4(x, x, 0xb1));
}

/* Which of a page's tokens each row sees. */
INLINE int see(const Dense *dense, int32_t page, const Block *block, __mmask16 *seen) {
    const __m512i token = _mm512_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3);
    const __m512i begin = _mm512_set1_epi32(dense->begins[page]);
    const __m512i end = _mm512_set1_epi32(dense->ends[page]);
    int any = 0;
    for (int v = 0; v < 4; v++) {
        __m512i here = _mm512_add_epi32(token, _mm512_set1_epi32(4 * v));
        __m512i at = _mm512_add_epi32(here, _mm512_set1_epi32(dense->starts[page]));
        seen[v] = _mm512_cmpge_epi32_mask(here, begin) & _mm512_cmplt_epi32_mask(here, end) &
                  _mm512_cmpge_epi32_mask(at, block->low) & _mm512_cmplt_epi32_mask(at, block->high);
        any |= seen[v];
    }
    return any;
}

INLINE void prefetch(const uint8_t *states, long nbytes) {
    for (long at = 0; at < nbytes; at += 64) _mm_prefetch((const char *)states + at, _MM_HINT_T0);
}

/* The logits of a page's tokens; those of padding are anything. */
INLINE void multiply_keys(const Dense *dense, const Block *block, const uint8_t *keys,
                          const uint8_t *next, int count, __m512 *logits, const int DTYPE) {
    const int size = dense->head_dim;
    const long stride = (DTYPE == FLOAT32 ? 4L : 2L) * size;
    _Alignas(64) float found[PAGE * BLOCK];
    memset(found, 0, sizeof found);
    for (int t = 0; t < count; t++, keys += stride) {
        if (next) prefetch(next + t * stride, stride);
        __m512 sums[BLOCK];
        for (int r = 0; r < BLOCK; r++) sums[r] = _mm512_setzero_ps();
        for (int d = 0; d < size; d += 16) {
            __m512 key = load_channels(keys, d, DTYPE);
            UNROLL
            for (int r = 0; r < BLOCK; r++)
                sums[r] = _mm512_fmadd_ps(key, _mm512_load_ps(block->turned[r] + d), sums[r]);
        }
        _mm_store_ps(found + t * BLOCK, sums_of_rows(sums));
    }
    for (int v = 0; v < 4; v++) {
        logits[v] = _mm512_load_ps(found + 16 * v);
        if (dense->softcap != 0.0f) {
            __m512 cap = _mm512_set1_ps(dense->softcap);
            logits[v] = _mm512_mul_ps(cap, hyperbolic_tangent(_mm512_div_ps(logits[v], cap)));
        }
    }
}

/* Fold one page in. */
INLINE void fold_page(const Dense *dense, Block *block, const uint8_t *keys, const uint8_t *values,
                      const uint8_t *next_keys, const uint8_t *next_values, int32_t page,
                      const int DTYPE) {
    const int size = dense->head_dim, first = dense->begins[page], count = dense->ends[page];
    const long stride = (DTYPE == FLOAT32 ? 4L : 2L) * size;
    __mmask16 seen[4];
    __m512 logits[4];
    if (!see(dense, page, block, seen)) return;
    multiply_keys(dense, block, keys, next_keys, count, logits, DTYPE);
    __m512 largest = block->maxima;
    for (int v = 0; v < 4; v++)
        largest = _mm512_mask_max_ps(largest, seen[v], largest, logits[v]);
    largest = largest_of_tokens(largest);
    __m512 shrink = exponential(_mm512_sub_ps(block->maxima, largest));
    __m512 total = _mm512_setzero_ps();
    _Alignas(64) float weights[PAGE * BLOCK], factors[16];
    for (int v = 0; v < 4; v++) {
        __m512 weight = exponential(_mm512_sub_ps(logits[v], largest));
        weight = _mm512_maskz_mov_ps(seen[v], weight);
        total = _mm512_add_ps(total, weight);
        _mm512_store_ps(weights + 16 * v, weight);
    }
    block->totals = _mm512_fmadd_ps(block->totals, shrink, sum_of_tokens(total));
    block->maxima = largest;
    _mm512_store_ps(factors, shrink);
    for (int d = 0; d < size; d += 64) {
        const int vectors = size - d < 64 ? (size - d) / 16 : 4;
        __m512 mixed[BLOCK][4];
        for (int r = 0; r < BLOCK; r++)
            for (int v = 0; v < vectors; v++)
                mixed[r][v] = _mm512_mul_ps(_mm512_load_ps(block->mixed[r] + d + 16 * v),
                                            _mm512_set1_ps(factors[r]));
        for (int t = first; t < count; t++) {
            if (next_values) prefetch(next_values + t * stride + d * stride / size, 64 * stride / size);
            const float *weight = weights + t * BLOCK;
            if (vectors == 4) {
                UNROLL
                for (int v = 0; v < 4; v++) {
                    __m512 value = load_channels(values + t * stride, d + 16 * v, DTYPE);
                    UNROLL
                    for (int r = 0; r < BLOCK; r++)
                        mixed[r][v] =
                            _mm512_fmadd_ps(value, _mm512_set1_ps(weight[r]), mixed[r][v]);
                }
            } else {
                for (int v = 0; v < vectors; v++) {
                    __m512 value = load_channels(values + t * stride, d + 16 * v, DTYPE);
                    for (int r = 0; r < BLOCK; r++)
                        mixed[r][v] =
                            _mm512_fmadd_ps(value, _mm512_set1_ps(weight[r]), mixed[r][v]);
                }
            }
        }
        for (int r = 0; r < BLOCK; r++)
            for (int v = 0; v < vectors; v++)
                _mm512_store_ps(block->mixed[r] + d + 16 * v, mixed[r][v]);
    }
}

/* The block's queries as a stretch sees them. */
static void turn_block(const Dense *dense, int head, int first, int32_t stretch, Block *block) {
    const int size = dense->head_dim;
    for (int r = 0; r < BLOCK; r++) {
        if (first + r >= dense->num_rows) {
            memset(block->turned[r], 0, size * sizeof(float));
            continue;
        }
        const float *query = dense->queries + ((long)head * dense->num_rows + first + r) * size;
        if (!dense->rotations) {
            memcpy(block->turned[r], query, size * sizeof(float));
            continue;
        }
        const float *rotation = dense->rotations + (long)stretch * size;
        for (int d = 0; d < size; d += 16) {
            __m512 x = _mm512_loadu_ps(query + d), angle = _mm512_loadu_ps(rotation + d);
            __m512 crossed = _mm512_mul_ps(_mm512_permute_ps(x, 0xb1), _mm512_movehdup_ps(angle));
            __m512 turned = _mm512_fmaddsub_ps(x, _mm512_moveldup_ps(angle), crossed);
            _mm512_store_ps(block->turned[r] + d, turned);
        }
    }
}

static void begin_block(const Dense *dense, int first, Block *block) {
    int32_t low[16], high[16];
    for (int lane = 0; lane < 16; lane++) {
        int row = first + lane % BLOCK, inside = row < dense->num_rows;
        low[lane] = inside ? dense->limits[2 * row] : 0;
        high[lane] = inside ? dense->limits[2 * row + 1] : INT32_MIN;
    }
    block->low = _mm512_loadu_si512(low), block->high = _mm512_loadu_si512(high);
    block->maxima = _mm512_set1_ps(UNSEEN), block->totals = _mm512_setzero_ps();
    for (int r = 0; r < BLOCK; r++) memset(block->mixed[r], 0, dense->head_dim * sizeof(float));
}

INLINE const uint8_t *of_head(const Dense *dense, const uint8_t *states, int32_t page, int head) {
    return states + dense->rows[page] * dense->page_stride + head * dense->head_stride;
}

INLINE void attend_pages(const Dense *dense, int head, int32_t begin, int32_t end, Block *blocks,
                         int num_blocks, const int DTYPE) {
    for (int b = 0; b < num_blocks; b++) begin_block(dense, b * BLOCK, blocks + b);
    for (int32_t page = begin; page < end; page++) {
        const uint8_t *keys = of_head(dense, dense->keys, page, head);
        const uint8_t *values = of_head(dense, dense->values, page, head);
        /* What is prefetched may be anything: it is never a fault. */
        int32_t ahead = page + 1 < end ? page + 1 : page;
        const uint8_t *next_keys = of_head(dense, dense->keys, ahead, head);
        const uint8_t *next_values = of_head(dense, dense->values, ahead, head);
        int turns = page == begin ||
                    (dense->rotations && dense->stretches[page] != dense->stretches[page - 1]);
        for (int b = 0; b < num_blocks; b++) {
            if (turns) turn_block(dense, head, b * BLOCK, dense->stretches[page], blocks + b);
            fold_page(dense, blocks + b, keys, values, b ? NULL : next_keys,
                      b ? NULL : next_values, page, DTYPE);
        }
    }
}

static void attend_part(const Dense *dense, int head, int32_t begin, int32_t end, Block *blocks,
                        int num_blocks) {
    switch (dense->dtype) {
    case FLOAT32: attend_pages(dense, head, begin, end, blocks, num_blocks, FLOAT32); break;
    case BFLOAT16: attend_pages(dense, head, begin, end, blocks, num_blocks, BFLOAT16); break;
    default: attend_pages(dense, head, begin, end, blocks, num_blocks, FLOAT16);
    }
}

/* What is wrong with a table, and in which of its pages. */
static int find_fault(const Dense *dense, int32_t *where) {
    for (int32_t p = 0; p < dense->num_pages; p++) {
        *where = p;
        if (dense->begins[p] < 0 || dense->begins[p] >= PAGE) return BAD_BEGIN;
        if (dense->ends[p] <= dense->begins[p] || dense->ends[p] > PAGE) return BAD_END;
        if (dense->rows[p] < 0 || dense->rows[p] * (int64_t)PAGE + dense->ends[p] > dense->num_tokens)
            return BAD_ROW;
        if (dense->rotations &&
            (dense->stretches[p] < 0 || dense->stretches[p] >= dense->num_stretches))
            return BAD_STRETCH;
    }
    return DONE;
}

/* Parts of the pages for threads to take, `others` times as many in all. */
static int32_t count_parts(const Dense *dense, int32_t others) {
    int32_t most = dense->num_pages / LEAST_PART_PAGES;
    int32_t wanted = dense->num_threads <= 1 ? 1 : (2 * dense->num_threads + others - 1) / others;
    return wanted < most ? wanted : most > 1 ? most : 1;
}

/* One row of a source's partial results, added up: `step` from one part to the next. */
static void add_row(const Block *parts, int32_t num_parts, long step, int lane, int size,
                    float *largest, float *total, float *out) {
    for (int32_t p = 0; p < num_parts; p++) {
        const Block *part = parts + p * step;
        float maximum = ((const float *)&part->maxima)[lane], share = 1.0f;
        if (maximum > *largest) {
            float shrink = expf(*largest - maximum);
            *total *= shrink;
            for (int d = 0; d < size; d++) out[d] *= shrink;
            *largest = maximum;
        } else {
            share = expf(maximum - *largest);
        }
        *total += share * ((const float *)&part->totals)[lane];
        for (int d = 0; d < size; d++) out[d] += share * part->mixed[lane][d];
    }
}

/* The same for a row that was attended to already. */
static void add_part(const float *values, float log_sum_exp, int size, float *largest,
                     float *total, float *out) {
    if (!(log_sum_exp > UNSEEN)) return;
    float share = 1.0f, shrink = 1.0f;
    if (log_sum_exp > *largest) {
        shrink = expf(*largest - log_sum_exp);
        *largest = log_sum_exp;
    } else {
        share = expf(log_sum_exp - *largest);
    }
    *total = *total * shrink + share;
    for (int d = 0; d < size; d++) out[d] = out[d] * shrink + share * values[d];
}

static void merge_rows(const Whole *whole, Block *const *blocks, float *out, float *log_sum_exp) {
    const Dense *first = whole->sources[0];
    const int rows = first->num_rows, size = first->head_dim;
    const int num_blocks = (rows + BLOCK - 1) / BLOCK;
    for (long at = 0; at < (long)first->num_heads * rows; at++, out += size) {
        const int head = (int)(at / rows), row = (int)(at % rows);
        float largest = UNSEEN, total = 0.0f;
        memset(out, 0, size * sizeof(float));
        for (int s = 0; s < whole->num_sources; s++) {
            int32_t num_parts = count_parts(whole->sources[s], first->num_heads);
            add_row(blocks[s] + (long)head * num_parts * num_blocks + row / BLOCK, num_parts,
                    num_blocks, row % BLOCK, size, &largest, &total, out);
        }
        for (int p = 0; p < whole->num_parts; p++)
            add_part(whole->values[p] + at * size, whole->log_sum_exp[p][at], size, &largest,
                     &total, out);
        log_sum_exp[at] = total > 0.0f ? largest + logf(total) : -INFINITY;
        for (int d = 0; d < size && total > 0.0f; d++) out[d] /= total;
    }
}

/* Partial results of every head, part and block of rows. */
static Block *attend_source(const Dense *dense) {
    const int num_blocks = (dense->num_rows + BLOCK - 1) / BLOCK, heads = dense->num_heads;
    const int32_t num_parts = count_parts(dense, heads);
    const int num_items = heads * num_parts;
    Block *blocks = aligned_alloc(64, ((size_t)num_items * num_blocks + 1) * sizeof(Block));
    if (!blocks) return NULL;
    int num_threads = num_items < dense->num_threads ? num_items : dense->num_threads;
    if ((int64_t)dense->num_pages * heads < LEAST_PART_PAGES) num_threads = 1;
#pragma omp parallel for schedule(dynamic, 1) num_threads(num_threads) if (num_threads > 1)
    for (int item = 0; item < num_items; item++) {
        int head = item / num_parts, part = item % num_parts;
        int32_t begin = (int32_t)((int64_t)dense->num_pages * part / num_parts);
        int32_t end = (int32_t)((int64_t)dense->num_pages * (part + 1) / num_parts);
        attend_part(dense, head, begin, end, blocks + (long)item * num_blocks, num_blocks);
    }
    return blocks;
}

/* out (H, R, D), log_sum_exp (H, R). Returns DONE or what is wrong; `where` is source and page. */
int agentmem_attend_dense(const Whole *whole, float *out, float *log_sum_exp, int32_t *where) {
    Block *blocks[MOST_SOURCES] = {0};
    int failed = 0;
    for (int s = 0; s < whole->num_sources; s++) {
        int fault = find_fault(whole->sources[s], where + 1);
        where[0] = s;
        if (fault) return fault;
    }
    for (int s = 0; s < whole->num_sources; s++) {
        blocks[s] = attend_source(whole->sources[s]);
        failed |= !blocks[s];
    }
    if (!failed) merge_rows(whole, blocks, out, log_sum_exp);
    for (int s = 0; s < whole->num_sources; s++) free(blocks[s]);
    return failed ? NO_MEMORY : DONE;
}

INLINE void weigh_pages(const Dense *dense, const float *log_sum_exp, int32_t begin, int32_t end,
                        Block *block, float *mass, const int DTYPE) {
    for (int head = 0; head < dense->num_heads; head++)
        for (int first = 0; first < dense->num_rows; first += BLOCK) {
            float over[16];
            for (int lane = 0; lane < 16; lane++) {
                int row = first + lane % BLOCK;
                float sum = row < dense->num_rows
                                ? log_sum_exp[(long)head * dense->num_rows + row] : 0.0f;
                over[lane] = sum > UNSEEN ? sum : UNSEEN;
            }
            const __m512 whole = _mm512_loadu_ps(over);
            begin_block(dense, first, block);
            int32_t turned = -1;
            for (int32_t page = begin; page < end; page++) {
                __mmask16 seen[4];
                __m512 logits[4];
                if (!see(dense, page, block, seen)) continue;
                if (turned < 0 || (dense->rotations && turned != dense->stretches[page])) {
                    turned = dense->rotations ? dense->stretches[page] : 0;
                    turn_block(dense, head, first, turned, block);
                }
                int32_t ahead = page + 1 < end ? page + 1 : page;
                multiply_keys(dense, block, of_head(dense, dense->keys, page, head),
                              of_head(dense, dense->keys, ahead, head), dense->ends[page],
                              logits, DTYPE);
                _Alignas(64) float shares[PAGE * BLOCK];
                for (int v = 0; v < 4; v++)
                    _mm512_store_ps(shares + 16 * v,
                                    _mm512_maskz_mov_ps(seen[v], exponential(_mm512_sub_ps(
                                                                     logits[v], whole))));
                for (int t = 0; t < PAGE; t++) {
                    const float *share = shares + t * BLOCK;
                    mass[(long)page * PAGE + t] += (share[0] + share[1]) + (share[2] + share[3]);
                }
            }
        }
}

static int weigh_source(const Dense *dense, const float *log_sum_exp, float *mass) {
    int failed = 0;
    const int32_t num_parts = count_parts(dense, 1);
    /* A part owns its pages' columns and goes through all heads: no two threads add to one. */
#pragma omp parallel for schedule(dynamic, 1) num_threads(num_parts) if (num_parts > 1)
    for (int32_t part = 0; part < num_parts; part++) {
        int32_t begin = (int32_t)((int64_t)dense->num_pages * part / num_parts);
        int32_t end = (int32_t)((int64_t)dense->num_pages * (part + 1) / num_parts);
        Block *block = aligned_alloc(64, sizeof(Block));
        if (!block) {
#pragma omp atomic write
            failed = 1;
            continue;
        }
        switch (dense->dtype) {
        case FLOAT32: weigh_pages(dense, log_sum_exp, begin, end, block, mass, FLOAT32); break;
        case BFLOAT16: weigh_pages(dense, log_sum_exp, begin, end, block, mass, BFLOAT16); break;
        default: weigh_pages(dense, log_sum_exp, begin, end, block, mass, FLOAT16);
        }
        free(block);
    }
    return failed;
}

/* Adds to the masses; log_sum_exp (H, R). Returns as agentmem_attend_dense does. */
int agentmem_dense_mass(const Whole *whole, const float *log_sum_exp, int32_t *where) {
    int failed = 0;
    for (int s = 0; s < whole->num_sources; s++) {
        int fault = find_fault(whole->sources[s], where + 1);
        where[0] = s;
        if (fault) return fault;
    }
    for (int s = 0; s < whole->num_sources; s++)
        failed |= weigh_source(whole->sources[s], log_sum_exp, whole->masses[s]);
    return failed ? NO_MEMORY : DONE;
}
