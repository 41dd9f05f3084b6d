/* Decode pages into the frame they are coded in: a code's value times its token's scale, both as
   the eager twin has them. */
#include <string.h>

#include "codes.h"
#include "coding.h"

/* One group of one width: 8 * WIDTH bytes to 64 codes. */
INLINE __m512i read_planes(const int WIDTH, const uint8_t *bytes) {
    if (WIDTH == 8) return _mm512_loadu_si512(bytes);
    __m512i codes = _mm512_setzero_si512();
    if (WIDTH & 4) {
        codes = _mm512_and_si512(plane_of_4(bytes), _mm512_set1_epi8(15));
        codes = _mm512_slli_epi16(codes, WIDTH & 3);
        bytes += 32;
    }
    if (WIDTH & 2) {
        __m512i plane = _mm512_and_si512(plane_of_2(bytes), _mm512_set1_epi8(3));
        codes = _mm512_or_si512(codes, _mm512_slli_epi16(plane, WIDTH & 1));
        bytes += 16;
    }
    if (WIDTH & 1)
        codes = _mm512_mask_add_epi8(codes, plane_of_1(bytes), codes, _mm512_set1_epi8(1));
    return codes;
}

INLINE __m512 values_of(const int WIDTH, __m512i codes, const float *values) {
    if (WIDTH <= 4) return _mm512_permutexvar_ps(codes, _mm512_loadu_ps(values));
    if (WIDTH == 5)
        return _mm512_permutex2var_ps(_mm512_loadu_ps(values), codes, _mm512_loadu_ps(values + 16));
    return _mm512_i32gather_ps(codes, values, 4);
}

/* The groups of a run. `scales` (4): those of four tokens' channels each; NULL: none. */
INLINE void decode_run(const int WIDTH, const uint8_t *bytes, int num_groups, const __m512 *scales,
                       const float *values, int by_channel, float *states, int64_t stride) {
    for (int group = 0; group < num_groups; group++, states += 4, bytes += 8 * WIDTH) {
        __m512i codes = read_planes(WIDTH, bytes);
        if (by_channel) codes = transposed_bytes(transposed_dwords(codes));
#define FOUR_TOKENS(K)                                                                         \
    {                                                                                          \
        __m512i words = _mm512_cvtepu8_epi32(_mm512_extracti32x4_epi32(codes, K));             \
        __m512 x = values_of(WIDTH, words, values);                                            \
        if (scales) x = _mm512_mul_ps(x, scales[K]);                                           \
        float *to = states + 4 * K * stride;                                                   \
        _mm_storeu_ps(to, _mm512_castps512_ps128(x));                                          \
        _mm_storeu_ps(to + stride, _mm512_extractf32x4_ps(x, 1));                              \
        _mm_storeu_ps(to + 2 * stride, _mm512_extractf32x4_ps(x, 2));                          \
        _mm_storeu_ps(to + 3 * stride, _mm512_extractf32x4_ps(x, 3));                          \
    }
        FOUR_TOKENS(0)
        FOUR_TOKENS(1)
        FOUR_TOKENS(2)
        FOUR_TOKENS(3)
#undef FOUR_TOKENS
    }
}

/* Channels without bits. */
static void write_zeros(float *states, int64_t stride, int num_channels) {
    for (int t = 0; t < PAGE_TOKENS; t++)
        memset(states + t * stride, 0, num_channels * sizeof(float));
}

static void decode_part(const Coding *coding, const Batch *batch, int side, int64_t page,
                        int64_t head) {
    const Part *part = coding->parts + side * coding->num_heads + head;
    const uint8_t *record = batch->pages + page * batch->page_stride;
    float *states = states_of(batch->states + side, page, head);
    int64_t stride = batch->states[side].token;
    __m512 spread[4], *scales = NULL;
    if (coding->token_scales) {
        __m512 all = _mm512_cvtph_ps(_mm256_loadu_si256((void *)(record + part->scales)));
        __m512i token = _mm512_set_epi32(3, 3, 3, 3, 2, 2, 2, 2, 1, 1, 1, 1, 0, 0, 0, 0);
        for (int k = 0; k < 4; k++) {
            __m512i of = _mm512_add_epi32(token, _mm512_set1_epi32(4 * k));
            spread[k] = _mm512_permutexvar_ps(of, all);
        }
        scales = spread;
    }
    for (int r = part->run; r < part->end_run; r++) {
        const CodeRun *run = coding->runs + r;
        const float *values = coding->values + (side * NUM_WIDTHS + run->width) * NUM_CODES;
        float *first = states + run->first_channel;
        if (run->width == 0) write_zeros(first, stride, run->num_groups * GROUP_CHANNELS);
        FOR_WIDTH(run->width, decode_run, record + run->offset, run->num_groups, scales, values,
                  side == VALUES, first, stride)
    }
}

/* `batch->states` from its pages. */
void agentmem_decode(const Coding *coding, const Batch *batch) {
    int64_t heads = coding->num_heads, num_items = batch->num_pages * heads;
    int num_threads = threads_for(batch, num_items);
#pragma omp parallel for schedule(static) num_threads(num_threads) if (num_threads > 1)
    for (int64_t item = 0; item < num_items; item++)
        for (int side = KEYS; side < NUM_SIDES; side++)
            decode_part(coding, batch, side, item / heads, item % heads);
}
