/* What encode.c and decode.c share: a layer's constants and a batch of its pages.

   Structures are mirrored field by field in cpu_coding.py and cpu_codes.py. The layout of records
   is packing.py's and code_stream.py's, what codes stand for codebook.py's. */
#pragma once

#include <immintrin.h>
#include <stdint.h>

#include "layout.h"
#include "vectors.h"

enum { KEYS, VALUES, NUM_SIDES, NUM_WIDTHS = 9, NUM_CODES = 256, NUM_STATES = 16 };

/* Neighbouring groups of one head and width, those without bits included. Channels of keys are
   counted through all heads, and so are those of values. */
typedef struct {
    int32_t width, first_channel, num_groups;
    int32_t first_bit; /* of a token's stream */
} CodeRun;

/* Keys, or values, of one head. */
typedef struct {
    int32_t run, end_run;
    int32_t scales; /* offset in a page's record */
} Part;

typedef struct {
    int32_t num_heads, head_dim, token_scales;
    int32_t num_words; /* of a token's stream, with which a record begins */
    int32_t is_trellis[NUM_SIDES];
    float tops[NUM_SIDES]; /* a token's size over its scale */
    const CodeRun *runs;
    const Part *parts;     /* (2, H) */
    const float *borders;  /* (2, 9, 256): where the next code begins by width, then infinity */
    const float *places;   /* (2, 9, 2): border i lies near i in x * [0] + [1]; widths 5 to 8 */
    const float *values;   /* (2, 9, 256): of each window by width */
    const float *reaches;  /* (2, 9): channels beyond are coded as if they were there; a trellis */
    const float *offsets[NUM_SIDES]; /* center (4, H, 16, D) of keys, mean (H, D) of values; NULL */
} Coding;

/* (P, H, 16, D) floats; strides are counted in floats, channels lie side by side. */
typedef struct {
    float *first; /* NULL: none */
    int64_t page, head, token;
} States;

typedef struct {
    States states[NUM_SIDES];
    const float *sizes[NUM_SIDES]; /* (H, P, 16): of tokens; NULL: that of the largest channel */
    uint8_t *pages;
    int64_t page_stride;
    const int32_t *phases; /* (P,), only where there is a center */
    int32_t num_pages, num_threads;
} Batch;

/* A channel of a page's tokens. */
typedef float Column[PAGE_TOKENS];

/* Fewer heads of pages than this are not worth another thread. */
enum { LEAST_ITEMS = 32 };

INLINE int threads_for(const Batch *batch, int64_t num_items) {
    int64_t most = num_items / LEAST_ITEMS;
    return (int)(batch->num_threads < most ? batch->num_threads : most > 1 ? most : 1);
}

INLINE float *states_of(const States *states, int64_t page, int64_t head) {
    return states->first + page * states->page + head * states->head;
}

/* Sixteen vectors as a matrix, transposed. */
INLINE void transpose(__m512 *rows) {
    __m512 a[16], b[16];
    UNROLL
    for (int i = 0; i < 16; i += 2) {
        a[i] = _mm512_unpacklo_ps(rows[i], rows[i + 1]);
        a[i + 1] = _mm512_unpackhi_ps(rows[i], rows[i + 1]);
    }
    UNROLL
    for (int i = 0; i < 16; i += 4) {
        b[i] = low_pairs(a[i], a[i + 2]);
        b[i + 1] = high_pairs(a[i], a[i + 2]);
        b[i + 2] = low_pairs(a[i + 1], a[i + 3]);
        b[i + 3] = high_pairs(a[i + 1], a[i + 3]);
    }
    UNROLL
    for (int i = 0; i < 4; i++) {
        a[i] = _mm512_shuffle_f32x4(b[i], b[i + 4], 0x88);
        a[i + 4] = _mm512_shuffle_f32x4(b[i], b[i + 4], 0xdd);
        a[i + 8] = _mm512_shuffle_f32x4(b[i + 8], b[i + 12], 0x88);
        a[i + 12] = _mm512_shuffle_f32x4(b[i + 8], b[i + 12], 0xdd);
    }
    UNROLL
    for (int i = 0; i < 4; i++) {
        rows[i] = _mm512_shuffle_f32x4(a[i], a[i + 8], 0x88);
        rows[i + 4] = _mm512_shuffle_f32x4(a[i + 4], a[i + 12], 0x88);
        rows[i + 8] = _mm512_shuffle_f32x4(a[i], a[i + 8], 0xdd);
        rows[i + 12] = _mm512_shuffle_f32x4(a[i + 4], a[i + 12], 0xdd);
    }
}

/* A call of a function of the width, which it then knows when it is compiled. */
#define FOR_WIDTH(WIDTH, FUNCTION, ...)    \
    switch (WIDTH) {                       \
    case 1: FUNCTION(1, __VA_ARGS__); break; \
    case 2: FUNCTION(2, __VA_ARGS__); break; \
    case 3: FUNCTION(3, __VA_ARGS__); break; \
    case 4: FUNCTION(4, __VA_ARGS__); break; \
    case 5: FUNCTION(5, __VA_ARGS__); break; \
    case 6: FUNCTION(6, __VA_ARGS__); break; \
    case 7: FUNCTION(7, __VA_ARGS__); break; \
    case 8: FUNCTION(8, __VA_ARGS__); break; \
    }
