/* What Python hands over: a layer's constants and one question about a window of its pages.

   Structures are mirrored field by field in cpu.py. Knows nothing of models or segments. */
#pragma once

#include <stdint.h>

enum {
    PAGE_TOKENS = 16,
    GROUP_CHANNELS = 4,
    STRETCH_PAGES = 4,
    STRETCH_TOKENS = 64,
    TILE_PAGES = 8,  /* pages between two corrections of the running softmax */
    TILE_TOKENS = 128,
    BLOCK_ROWS = 8,  /* query rows that share one reading of the codes */
    MAX_DIM = 256,
    PAGE_LEVELS = MAX_DIM * PAGE_TOKENS + 64, /* not a multiple of 4 KB, which caches confuse */
    STATE_BITS = 4, /* of the stream before a narrow code: see code_stream.py */
    WIDEST_NARROW = 4,
};

/* A matrix for rows of 16-bit integers: (H, D / 2, columns, 2), each column times its scale. */
typedef struct {
    const int16_t *pairs;
    const float *scales; /* (H, columns) */
    const float *norms;  /* (H,): a row's norm times that is the size of the results */
} ShortMatrix;

enum { PROJECT_CHANNELS, PROJECT_MATRIX, PROJECT_HADAMARD };

/* Neighbouring groups of channels of one width. Groups without bits are not counted at all. */
typedef struct {
    int32_t width, first_group, num_groups;
    int32_t first_bit; /* of a token's stream */
} Run;

typedef struct {
    int32_t key_groups, value_groups; /* with bits */
    int32_t key_run, value_run, end_run;
    int32_t key_scales, value_scales; /* offsets in a page's record */
    /* Of the streams: the first word with codes of its keys, and how many; of its values. */
    int32_t key_word, key_words, value_word, value_words;
    int32_t flags; /* 1: its keys with bits are whole words of codes of 8 bits; 2: its values */
} Head;

typedef struct {
    int32_t num_heads, head_dim;
    int32_t key_channels, value_channels; /* of the widest head, rounded up to 16 */
    int32_t projection_kind, token_scales;
    int32_t is_trellis[2]; /* of keys, of values: whether narrow codes depend on the bits before */
    const Head *heads;
    const Run *runs;
    const uint8_t *key_tables, *value_tables; /* (5, 256): see codes.h */
    /* From a turned query to the channels that have bits, units folded in:
       PROJECT_CHANNELS (H, D): factors;  PROJECT_MATRIX (H, D, key_channels);
       PROJECT_HADAMARD (H, 2, D): factors before and after the Walsh-Hadamard transform. */
    const float *projection;
    ShortMatrix short_projection; /* of PROJECT_MATRIX */
    const int32_t *key_group_places; /* (H, D / 4): which groups have bits; not for a matrix */
    const float *center;             /* (H, D, 64), or NULL */
    ShortMatrix short_center;
    const float *restoration;        /* (H, value_channels, D rounded up to 16), or NULL: */
    const float *value_units;        /* (H, value_channels) and */
    const int32_t *value_group_places; /* (H, D / 4) */
    const float *value_mean;           /* (H, D), or NULL */
} Layer;

typedef struct {
    const float *queries;   /* (H, R, D) */
    const float *rotations; /* (S, D): cosine and sine of each pair */
    const int32_t *rows, *stretches, *phases, *starts, *begins, *ends; /* (P,) */
    const uint8_t *pages;
    const int32_t *limits; /* (R, 2) */
    int64_t page_stride, capacity;
    int32_t num_rows, num_pages, num_stretches, num_threads;
    float softcap; /* 0: none */
} Window;
