/* What encode.c and decode.c share: a layer's constants and a batch of its pages.

   Structures are mirrored field by field in cpu_coding.py. The layout of records is packing.py's,
   what codes stand for codebook.py's. A group is four channels of a page's 16 tokens. */
#pragma once

#include <immintrin.h>
#include <stdint.h>

#include "layout.h"
#include "vectors.h"

enum { KEYS, VALUES, NUM_SIDES, NUM_WIDTHS = 9, NUM_CODES = 256 };

/* Neighbouring groups of one width, those without bits included. */
typedef struct {
    int32_t width, first_channel, num_groups;
    int32_t offset; /* of the first code in a page's record */
} CodeRun;

/* Keys, or values, of one head. */
typedef struct {
    int32_t run, end_run;
    int32_t scales; /* offset in a page's record */
} Part;

typedef struct {
    int32_t num_heads, head_dim, token_scales;
    float tops[NUM_SIDES]; /* a token's size over its scale */
    const CodeRun *runs;
    const Part *parts;     /* (2, H) */
    const float *borders;  /* (2, 9, 256): where the next code begins by width, then infinity */
    const float *places;   /* (2, 9, 2): border i lies near i in x * [0] + [1]; widths 5 to 8 */
    const float *values;   /* (2, 9, 256): of each code by width */
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

/* Fewer heads of pages than this are not worth another thread. */
enum { LEAST_ITEMS = 32 };

INLINE int threads_for(const Batch *batch, int64_t num_items) {
    int64_t most = num_items / LEAST_ITEMS;
    return (int)(batch->num_threads < most ? batch->num_threads : most > 1 ? most : 1);
}

INLINE float *states_of(const States *states, int64_t page, int64_t head) {
    return states->first + page * states->page + head * states->head;
}

/* Sixteen dwords as a 4 by 4 matrix, transposed: its own inverse. */
INLINE __m512i transposed_dwords(__m512i x) {
    return _mm512_permutexvar_epi32(
        _mm512_set_epi32(15, 11, 7, 3, 14, 10, 6, 2, 13, 9, 5, 1, 12, 8, 4, 0), x);
}

/* The bytes of each 128 bits likewise. */
INLINE __m512i transposed_bytes(__m512i x) {
    return _mm512_shuffle_epi8(
        x, _mm512_broadcast_i32x4(
               _mm_set_epi8(15, 11, 7, 3, 14, 10, 6, 2, 13, 9, 5, 1, 12, 8, 4, 0)));
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
