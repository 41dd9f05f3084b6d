/* Decode pages into the frame they are coded in: a code's value times its token's scale, both as
   the eager twin has them. */
#include "codes.h"
#include "coding.h"

/* The groups of a run: windows of narrow codes, wide codes alone, and what they stand for. */
static void read_run(const CodeRun *run, const uint8_t *words, int num_words, const float *values,
                     int is_scaled, __m512 scales, Column *columns) {
    int state_bits = run->width <= WIDEST_NARROW ? STATE_BITS : 0;
    __m512i mask = _mm512_set1_epi32((1 << (run->width + state_bits)) - 1);
    for (int c = 0; c < run->num_groups * GROUP_CHANNELS; c++) {
        float *channel = columns[c];
        if (!run->width) {
            _mm512_store_ps(channel, _mm512_setzero_ps());
            continue;
        }
        int bit = run->first_bit + c * run->width - state_bits;
        __m512i window = _mm512_and_si512(bits_from(words, num_words, bit), mask);
        __m512 x = _mm512_i32gather_ps(window, values, 4);
        _mm512_store_ps(channel, is_scaled ? _mm512_mul_ps(x, scales) : x);
    }
}

static void write_rows(const Column *columns, int size, float *states, int64_t stride) {
    for (int d = 0; d < size; d += 16) {
        __m512 rows[PAGE_TOKENS];
        __mmask16 there = first_lanes(size - d);
        UNROLL
        for (int c = 0; c < 16; c++) rows[c] = _mm512_load_ps(columns[d + c]);
        transpose(rows);
        UNROLL
        for (int t = 0; t < PAGE_TOKENS; t++)
            _mm512_mask_storeu_ps(states + t * stride + d, there, rows[t]);
    }
}

static void decode_part(const Coding *coding, const Batch *batch, int side, int64_t page,
                        int64_t head) {
    const Part *part = coding->parts + side * coding->num_heads + head;
    const uint8_t *record = batch->pages + page * batch->page_stride;
    float *states = states_of(batch->states + side, page, head);
    __m512 scales = _mm512_setzero_ps();
    _Alignas(64) Column columns[MAX_DIM];
    if (coding->token_scales)
        scales = _mm512_cvtph_ps(_mm256_loadu_si256((void *)(record + part->scales)));
    for (int r = part->run; r < part->end_run; r++) {
        const CodeRun *run = coding->runs + r;
        const float *values = coding->values + (side * NUM_WIDTHS + run->width) * NUM_CODES;
        read_run(run, record, coding->num_words, values, coding->token_scales, scales,
                 columns + run->first_channel - head * coding->head_dim);
    }
    write_rows(columns, coding->head_dim, states, batch->states[side].token);
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
