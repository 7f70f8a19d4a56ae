/* The highest numbers of a row, found while it is made or read: whoever needs only these need not store the rest. */
#ifndef EW_TOP_H
#define EW_TOP_H

#include "isa.h"

typedef struct { float value; int32_t id; } ew_candidate;

/* The `most` highest seen so far, at least 1, descending; among equals the lower id comes first. */
typedef struct {
    int most, count;
    ew_candidate *items;
} ew_top_list;

/* Whether a number is one of them, or NaN and never is. */
EW_INLINE int ew_top_wants(const ew_top_list *t, float value) { return t->count < t->most ? value == value : value > t->items[t->most - 1].value; }

/* Takes a wanted number in; its id must be higher than those of its equals that were taken before. */
static void ew_top_insert(ew_top_list *t, float value, int32_t id) {
    int low = 0, high = t->count;
    while (low < high) {
        const int middle = (low + high) / 2;
        if (t->items[middle].value >= value) low = middle + 1;
        else high = middle;
    }
    if (t->count < t->most) t->count++;
    memmove(t->items + low + 1, t->items + low, (size_t)(t->count - 1 - low) * sizeof *t->items);
    t->items[low] = (ew_candidate){value, id};
}

EW_NOINLINE void ew_top_insert_lanes(ew_top_list *t, vf x, int first, int end) {
    float lanes[EW_LANES] EW_ALIGNED;
    vf_store(lanes, x);
    for (int i = 0; i < EW_LANES && first + i < end; i++)
        if (ew_top_wants(t, lanes[i])) ew_top_insert(t, lanes[i], first + i);
}

/* Takes the numbers in that have the ids from `first` on, as far as `end`. */
EW_INLINE void ew_top_take(ew_top_list *t, vf x, int first, int end) {
    if (t->count < t->most || vi_any(vf_gt(x, vf_set1(t->items[t->most - 1].value)))) ew_top_insert_lanes(t, x, first, end);
}

/* The highest of `n` numbers. */
static void ew_top(const float *x, int n, ew_top_list *t) {
    int i = 0;
    for (; i + EW_LANES <= n; i += EW_LANES) ew_top_take(t, vf_load(x + i), i, n);
    for (; i < n; i++)
        if (ew_top_wants(t, x[i])) ew_top_insert(t, x[i], i);
}

#endif
