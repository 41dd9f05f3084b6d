/* Encode pages: token scales, codes, streams. Code for code what packed.encode gives.

   A product with a layer's transform is PyTorch's, so that both round alike; what follows is
   compared, divided and rounded as the eager twin does it. */
#include <stdlib.h>
#include <string.h>

#include "coding.h"
#include "nearest.h"
#include "trellis.h"

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

/* The channels of 16 tokens, each token's over its divisor. */
static void read_columns(const float *states, int64_t stride, int size, __m512 divisors,
                         int is_scaled, Column *columns) {
    for (int d = 0; d < size; d += 16) {
        __m512 rows[PAGE_TOKENS];
        __mmask16 there = first_lanes(size - d);
        UNROLL
        for (int t = 0; t < PAGE_TOKENS; t++)
            rows[t] = _mm512_maskz_loadu_ps(there, states + t * stride + d);
        transpose(rows);
        UNROLL
        for (int c = 0; c < 16; c++)
            _mm512_store_ps(columns[d + c],
                            is_scaled ? _mm512_div_ps(rows[c], divisors) : rows[c]);
    }
}

/* Streams as they are written: see code_stream.py. */
typedef struct {
    uint8_t *words;  /* the next ones */
    __m512i word;    /* what they hold so far */
    int filled;      /* bits of it */
    __m512i written; /* the last 32 bits of all, the latest highest */
} Writer;

static void write_run(const CodeRun *run, const __m512i *codes, Writer *writer) {
    int end = run->first_channel + run->num_groups * GROUP_CHANNELS, width = run->width;
    if (!width) return;
    for (int c = run->first_channel; c < end; c++) {
        __m512i code = codes[c];
        writer->word = _mm512_or_si512(writer->word, shifted_left(code, writer->filled));
        writer->written = _mm512_or_si512(shifted_right(writer->written, width),
                                          shifted_left(code, 32 - width));
        writer->filled += width;
        if (writer->filled < 32) continue;
        writer->filled -= 32;
        _mm512_storeu_si512(writer->words, writer->word);
        writer->words += 64;
        writer->word = shifted_right(code, width - writer->filled);
    }
}

/* What one thread works with: all keys of a page, and then all values. */
typedef struct {
    Column *columns;
    __m512i *codes;
    Paths paths;
} Workspace;

static void free_workspace(Workspace *workspace) {
    if (!workspace) return;
    free(workspace->columns);
    free(workspace->codes);
    free(workspace->paths.left);
    free(workspace);
}

static Workspace *make_workspace(const Coding *coding) {
    /* Columns are written sixteen at a time, and bits that left are read four bytes at a time. */
    size_t channels = (size_t)coding->num_heads * coding->head_dim + 16;
    Workspace *workspace = aligned_alloc(64, sizeof(Workspace));
    if (!workspace) return NULL;
    int has_paths = coding->is_trellis[KEYS] || coding->is_trellis[VALUES];
    workspace->columns = aligned_alloc(64, channels * sizeof(Column));
    workspace->codes = aligned_alloc(64, channels * sizeof(__m512i));
    workspace->paths.left = aligned_alloc(64, has_paths ? channels * sizeof(Step) : 64);
    if (workspace->columns && workspace->codes && workspace->paths.left) return workspace;
    free_workspace(workspace);
    return NULL;
}

/* Scales of one head's tokens, and its channels over them. Returns bits of the largest's size. */
static int32_t read_head(const Coding *coding, const Batch *batch, int side, int64_t page,
                         int64_t head, uint8_t *record, Column *columns) {
    const Part *part = coding->parts + side * coding->num_heads + head;
    const float *states = states_of(batch->states + side, page, head);
    int64_t stride = batch->states[side].token;
    __m512i sizes = token_sizes(states, stride, coding->head_dim);
    __m512 divisors = _mm512_setzero_ps();
    if (coding->token_scales) {
        __m512 given = _mm512_castsi512_ps(sizes);
        if (batch->sizes[side])
            given = _mm512_loadu_ps(batch->sizes[side] +
                                    (head * batch->num_pages + page) * PAGE_TOKENS);
        divisors = write_scales(given, coding->tops[side], record + part->scales);
    }
    read_columns(states, stride, coding->head_dim, divisors, coding->token_scales, columns);
    return _mm512_reduce_max_epi32(sizes);
}

/* One page. `largest` (2): bits of the largest size of keys so far, and of values. */
static void encode_page(const Coding *coding, const Batch *batch, int64_t page,
                        Workspace *workspace, int32_t *largest) {
    int heads = coding->num_heads;
    uint8_t *record = batch->pages + page * batch->page_stride;
    Writer writer = {record, _mm512_setzero_si512(), 0, _mm512_setzero_si512()};
    for (int side = KEYS; side < NUM_SIDES; side++) {
        const Part *parts = coding->parts + side * heads;
        int first = parts[0].run, end = parts[heads - 1].end_run;
        for (int head = 0; head < heads; head++) {
            int32_t size = read_head(coding, batch, side, page, head, record,
                                     workspace->columns + head * coding->head_dim);
            if (size > largest[side]) largest[side] = size;
        }
        if (coding->is_trellis[side]) {
            __m512i before = _mm512_srli_epi32(writer.written, 32 - STATE_BITS);
            path_codes(coding, side, first, end, workspace->columns, before, &workspace->paths,
                       workspace->codes);
        }
        for (int r = first; r < end; r++) {
            const CodeRun *run = coding->runs + r;
            if (!coding->is_trellis[side])
                nearest_run(coding, side, run, workspace->columns, workspace->codes);
            write_run(run, workspace->codes, &writer);
        }
    }
    if (writer.filled) _mm512_storeu_si512(writer.words, writer.word);
}

/* `batch->pages` from its states. `largest` (2): the largest channel of all keys, of all values;
   not finite where one is not. */
int agentmem_encode(const Coding *coding, const Batch *batch, float *largest) {
    int num_threads = threads_for(batch, (int64_t)batch->num_pages * coding->num_heads);
    int32_t most[NUM_SIDES] = {0, 0};
    int failed = 0;
#pragma omp parallel num_threads(num_threads) if (num_threads > 1)
    {
        int32_t mine[NUM_SIDES] = {0, 0};
        Workspace *workspace = make_workspace(coding);
        if (!workspace) {
#pragma omp atomic write
            failed = 1;
        }
#pragma omp for schedule(static)
        for (int64_t page = 0; page < batch->num_pages; page++)
            if (workspace) encode_page(coding, batch, page, workspace, mine);
        free_workspace(workspace);
#pragma omp critical
        for (int side = KEYS; side < NUM_SIDES; side++)
            if (mine[side] > most[side]) most[side] = mine[side];
    }
    memcpy(largest, most, sizeof most);
    return failed ? NO_MEMORY : DONE;
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
