/* From partial results to attended values: parts of a row merged by their log-sum-exp, coded
   channels taken back to the model's own. */
#pragma once

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "layout.h"
#include "matrices.h"

/* Stands for a logit that is not seen, and for the largest of none. */
#define UNSEEN (-1e30f)

/* Floats of one row's partial result: largest logit, sum of exponentials, values by channel. */
static long partial_size(const Layer *layer) { return 16 + layer->value_channels; }

/* Up to BLOCK_ROWS rows from coded channels to the model's own; zeros where `seen` is 0. */
static void restore(const Layer *layer, int head_index, int rows, float (*coded)[MAX_DIM],
                    const int *seen, float *out) {
    int size = layer->head_dim, num_groups = layer->heads[head_index].value_groups;
    float restored[BLOCK_ROWS][MAX_DIM];
    memset(restored, 0, sizeof restored);
    if (layer->restoration) {
        int columns = (size + 15) & ~15;
        multiply(rows, coded[0], MAX_DIM,
                 layer->restoration + (long)head_index * layer->value_channels * columns, columns,
                 layer->value_channels, columns, restored[0], MAX_DIM);
    } else {
        const float *units = layer->value_units + (long)head_index * layer->value_channels;
        const int32_t *places =
            layer->value_group_places + (long)head_index * (size / GROUP_CHANNELS);
        for (int r = 0; r < rows; r++)
            for (int c = 0; c < num_groups * GROUP_CHANNELS; c++)
                restored[r][places[c / GROUP_CHANNELS] * GROUP_CHANNELS + c % GROUP_CHANNELS] =
                    coded[r][c] * units[c];
    }
    const float *mean = layer->value_mean ? layer->value_mean + (long)head_index * size : NULL;
    for (int r = 0; r < rows; r++)
        for (int d = 0; d < size; d++)
            out[r * size + d] = seen[r] ? restored[r][d] + (mean ? mean[d] : 0.0f) : 0.0f;
}

/* Merge the parts of every row. `partials` is (num_parts, H, R, partial_size). */
static void merge(const Layer *layer, const Window *window, int32_t num_parts,
                  const float *partials, float *out, float *log_sum_exp) {
    long size = partial_size(layer), num_rows = (long)layer->num_heads * window->num_rows;
    int block = window->num_rows < BLOCK_ROWS ? window->num_rows : BLOCK_ROWS;
    for (long first = 0; first < num_rows;) {
        int head_index = (int)(first / window->num_rows);
        long left = (head_index + 1L) * window->num_rows - first;
        int rows = left < block ? (int)left : block;
        _Alignas(64) float coded[BLOCK_ROWS][MAX_DIM];
        int seen[BLOCK_ROWS];
        memset(coded, 0, sizeof coded);
        for (int r = 0; r < rows; r++) {
            long row = first + r;
            float largest = UNSEEN, total = 0.0f;
            for (int32_t part = 0; part < num_parts; part++)
                largest = fmaxf(largest, partials[(part * num_rows + row) * size]);
            for (int32_t part = 0; part < num_parts; part++) {
                const float *partial = partials + (part * num_rows + row) * size;
                float weight = expf(partial[0] - largest);
                total += weight * partial[1];
                for (int c = 0; c < layer->value_channels; c++)
                    coded[r][c] += weight * partial[16 + c];
            }
            seen[r] = total != 0.0f;
            log_sum_exp[row] = seen[r] ? largest + logf(total) : -INFINITY;
            for (int c = 0; seen[r] && c < layer->value_channels; c++) coded[r][c] /= total;
        }
        restore(layer, head_index, rows, coded, seen, out + first * layer->head_dim);
        first += rows;
    }
}
