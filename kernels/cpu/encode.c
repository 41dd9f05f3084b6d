/* Encode pages: token scales, nearest codes, planes. Code for code what packed.encode gives.

   A product with a layer's transform is PyTorch's, so that both round alike; what follows is
   compared, divided and rounded as the eager twin does it. A code is that of the nearest value: of
   up to 16 found by halves in a register of borders, of more, which are uniform, by the place of
   the nearest border. */
#include <stdlib.h>
#include <string.h>

#include "coding.h"

enum { DONE = 0, NO_MEMORY = -1, BAD_PHASE = 1 };

/* Bits of the size of each token's largest channel: infinity or above where one is not finite. */
static __m512i token_sizes(const float *states, int64_t stride, int size) {
    _Alignas(64) int32_t sizes[PAGE_TOKENS];
    const __m512i magnitude = _mm512_set1_epi32(0x7fffffff);
    for (int t = 0; t < PAGE_TOKENS; t++, states += stride) {
        __m512i most = _mm512_setzero_si512();
        for (int d = 0; d < size; d += 16) {
            __m512i x = _mm512_maskz_loadu_epi32(first_lanes(size - d), states + d);
            most = _mm512_max_epi32(most, _mm512_and_si512(x, magnitude));
        }
        sizes[t] = _mm512_reduce_max_epi32(most);
    }
    return _mm512_load_si512(sizes);
}

/* Write scales, float16 rounded up, so that no code overflows. Returns what to divide by. */
static __m512 write_scales(__m512 sizes, float top, uint8_t *scales) {
    __m512 exact = _mm512_div_ps(sizes, _mm512_set1_ps(top));
    __m256i halves = _mm512_cvtps_ph(exact, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    __mmask16 below = _mm512_cmp_ps_mask(_mm512_cvtph_ps(halves), exact, _CMP_LT_OQ);
    /* The bit pattern of a non-negative float16 plus one is the next larger one. */
    halves = _mm256_mask_add_epi16(halves, below, halves, _mm256_set1_epi16(1));
    _mm256_storeu_si256((__m256i *)scales, halves);
    __m512 rounded = _mm512_cvtph_ps(halves);
    __mmask16 none = _mm512_cmp_ps_mask(rounded, _mm512_setzero_ps(), _CMP_EQ_OQ);
    return _mm512_mask_mov_ps(rounded, none, _mm512_set1_ps(1.0f));
}

/* How many of a width's borders lie below each of x, which need not be finite. */
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

/* 64 codes as 8 * WIDTH bytes: see packing.py. */
INLINE void write_planes(const int WIDTH, __m512i codes, uint8_t *bytes) {
    if (WIDTH == 8) {
        _mm512_storeu_si512(bytes, codes);
        return;
    }
    if (WIDTH & 4) {
        __m512i plane = _mm512_and_si512(_mm512_srli_epi16(codes, WIDTH & 3), _mm512_set1_epi8(15));
        __m256i high = _mm256_slli_epi16(_mm512_extracti64x4_epi64(plane, 1), 4);
        _mm256_storeu_si256((__m256i *)bytes,
                            _mm256_or_si256(_mm512_castsi512_si256(plane), high));
        bytes += 32;
    }
    if (WIDTH & 2) {
        __m512i plane = _mm512_and_si512(_mm512_srli_epi16(codes, WIDTH & 1), _mm512_set1_epi8(3));
        /* Byte j of the four quarters side by side in 128 bits. */
        plane = _mm512_sllv_epi64(plane, _mm512_set_epi64(6, 6, 4, 4, 2, 2, 0, 0));
        __m256i half = _mm256_or_si256(_mm512_castsi512_si256(plane),
                                       _mm512_extracti64x4_epi64(plane, 1));
        _mm_storeu_si128((__m128i *)bytes, _mm_or_si128(_mm256_castsi256_si128(half),
                                                        _mm256_extracti128_si256(half, 1)));
        bytes += 16;
    }
    if (WIDTH & 1) {
        uint64_t bits = _mm512_test_epi8_mask(codes, _mm512_set1_epi8(1));
        memcpy(bytes, &bits, 8);
    }
}

/* Four channels of every fourth token. */
INLINE __m512 every_fourth_token(const float *states, int64_t stride) {
    __m512 x = _mm512_castps128_ps512(_mm_loadu_ps(states));
    x = _mm512_insertf32x4(x, _mm_loadu_ps(states + 4 * stride), 1);
    x = _mm512_insertf32x4(x, _mm_loadu_ps(states + 8 * stride), 2);
    return _mm512_insertf32x4(x, _mm_loadu_ps(states + 12 * stride), 3);
}

/* The groups of a run. `divisors` (4): those of every fourth token's channels; NULL: none. */
INLINE void encode_run(const int WIDTH, const float *states, int64_t stride, int num_groups,
                       const __m512 *divisors, const float *borders, const float *place,
                       int by_channel, uint8_t *bytes) {
    for (int group = 0; group < num_groups; group++, states += 4, bytes += 8 * WIDTH) {
        __m512i codes[4];
        UNROLL
        for (int k = 0; k < 4; k++) {
            __m512 x = every_fourth_token(states + k * stride, stride);
            if (divisors) x = _mm512_div_ps(x, divisors[k]);
            codes[k] = nearest(WIDTH, x, borders, place);
        }
        /* Tokens come back into order: k, k + 4, k + 8, k + 12 are in the four 128 bits. */
        __m512i words = _mm512_packus_epi16(_mm512_packus_epi32(codes[0], codes[1]),
                                            _mm512_packus_epi32(codes[2], codes[3]));
        if (by_channel) words = transposed_dwords(transposed_bytes(words));
        write_planes(WIDTH, words, bytes);
    }
}

/* Keys or values of one head of a page. Returns bits of the largest channel's size. */
static int32_t encode_part(const Coding *coding, const Batch *batch, int side, int64_t page,
                           int64_t head, uint8_t *record) {
    const Part *part = coding->parts + side * coding->num_heads + head;
    const float *states = states_of(batch->states + side, page, head);
    int64_t stride = batch->states[side].token;
    __m512i sizes = token_sizes(states, stride, coding->head_dim);
    __m512 spread[4], *divisors = NULL;
    if (coding->token_scales) {
        __m512 given = _mm512_castsi512_ps(sizes);
        if (batch->sizes[side])
            given = _mm512_loadu_ps(batch->sizes[side] +
                                    (head * batch->num_pages + page) * PAGE_TOKENS);
        __m512 scales = write_scales(given, coding->tops[side], record + part->scales);
        spread[0] = _mm512_permute_ps(scales, 0x00);
        spread[1] = _mm512_permute_ps(scales, 0x55);
        spread[2] = _mm512_permute_ps(scales, 0xaa);
        spread[3] = _mm512_permute_ps(scales, 0xff);
        divisors = spread;
    }
    for (int r = part->run; r < part->end_run; r++) {
        const CodeRun *run = coding->runs + r;
        long table = side * NUM_WIDTHS + run->width;
        FOR_WIDTH(run->width, encode_run, states + run->first_channel, stride, run->num_groups,
                  divisors, coding->borders + table * NUM_CODES, coding->places + table * 2,
                  side == VALUES, record + run->offset)
    }
    return _mm512_reduce_max_epi32(sizes);
}

/* `batch->pages` from its states. `largest` (2): the largest channel of all keys, of all values;
   not finite where one is not. */
int agentmem_encode(const Coding *coding, const Batch *batch, float *largest) {
    int64_t heads = coding->num_heads, num_items = batch->num_pages * heads;
    int32_t *sizes = malloc((num_items * NUM_SIDES + 1) * sizeof(int32_t));
    if (!sizes) return NO_MEMORY;
    int num_threads = threads_for(batch, num_items);
#pragma omp parallel for schedule(static) num_threads(num_threads) if (num_threads > 1)
    for (int64_t item = 0; item < num_items; item++) {
        int64_t page = item / heads, head = item % heads;
        uint8_t *record = batch->pages + page * batch->page_stride;
        for (int side = KEYS; side < NUM_SIDES; side++)
            sizes[item * NUM_SIDES + side] = encode_part(coding, batch, side, page, head, record);
    }
    int32_t most[NUM_SIDES] = {0, 0};
    for (int64_t i = 0; i < num_items * NUM_SIDES; i++)
        if (sizes[i] > most[i % NUM_SIDES]) most[i % NUM_SIDES] = sizes[i];
    memcpy(largest, most, sizeof most);
    free(sizes);
    return DONE;
}

/* Write states less their offsets, or plus them, to `to` (2). Returns what is wrong; `where` is
   the page. */
int agentmem_center(const Coding *coding, const Batch *batch, const States *to, int32_t back,
                    int32_t *where) {
    int64_t heads = coding->num_heads, size = coding->head_dim;
    int64_t num_items = batch->num_pages * heads;
    for (int32_t p = 0; coding->offsets[KEYS] && p < batch->num_pages; p++) {
        *where = p;
        if (batch->phases[p] < 0 || batch->phases[p] >= STRETCH_PAGES) return BAD_PHASE;
    }
    int num_threads = threads_for(batch, num_items / 4);
#pragma omp parallel for schedule(static) num_threads(num_threads) if (num_threads > 1)
    for (int64_t item = 0; item < num_items * NUM_SIDES; item++) {
        int side = item % NUM_SIDES;
        int64_t page = item / NUM_SIDES / heads, head = item / NUM_SIDES % heads;
        if (!to[side].first) continue;
        const float *from = states_of(batch->states + side, page, head);
        float *into = states_of(to + side, page, head);
        const float *offset = coding->offsets[side];
        int64_t next = side == KEYS ? size : 0;
        if (offset && side == KEYS)
            offset += (batch->phases[page] * heads + head) * PAGE_TOKENS * size;
        else if (offset)
            offset += head * size;
        for (int t = 0; t < PAGE_TOKENS; t++) {
            for (int64_t d = 0; d < size; d++) {
                float by = offset ? offset[t * next + d] : 0.0f;
                into[d] = back ? from[d] + by : from[d] - by;
            }
            from += batch->states[side].token;
            into += to[side].token;
        }
    }
    return DONE;
}
