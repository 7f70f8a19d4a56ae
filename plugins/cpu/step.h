/* The engine's state, and how the ops of a step are split over threads.
 *
 * A step runs in one of two ways, over the same emitted code and with the same results:
 *   columns  few tokens: every stage is cut into a part a thread
 *   tiles    many tokens: a thread takes a tile of tokens through a whole phase alone
 * A stage is a run of calls that need nothing from other parts of the same stage. A phase ends where
 * attention begins, since attention reads what every token has written. Values that live inside a phase
 * lie in local memory (`mine`, `ours`); the rest in the stream, a row a token.
 *
 * There are no barriers: work is claimed, and the next stage begins when all of it is done. A thread begins
 * with its own part, then takes parts that nobody has begun, so one that the system keeps off its core
 * delays the others only by what it had begun. When it is back it finds its stages done and runs after.
 */
#ifndef EW_STEP_H
#define EW_STEP_H

#include "attention.h"
#include "pool.h"
#include "sample.h"

#define EW_RING 8 /* steps whose facts are kept: a late thread may still be looking at an old one */

typedef struct {
    int base;                /* first token of the span */
    int rows;
    int first, last;         /* row ops into local memory */
    int split_first, split_last; /* row ops into the stream: never done twice */
    int part, parts;         /* share of the columns */
    int columns, redundant, thread;
    uint8_t *mine, *ours;    /* local memory for row ops, and for ops split by columns */
    size_t mine_rows, ours_rows; /* rows that each value has there */
    const uint8_t *weights;  /* the copy that the thread reads */
} ew_span;

typedef struct {
    ew_batch batch;
    const ew_sampling *sampling;
    ew_result *result;
    _Atomic int ready;       /* 0: not sampled yet, 1: see `sampling` and `result` */
    int deferred;            /* some token ids name rows of the step before */
    int32_t *ids, *positions, *sequences; /* [tokens] */
    int32_t *tokens;         /* [rows], sampled */
    uint8_t *wanted;         /* [rows]: how many of the highest logits the head keeps, or EW_HEAD_ALL */
    double started;
    uint64_t number;
    int attention_items;     /* in each phase that begins with attention */
    atomic_int *begun, *finished; /* [phases]: items of attention, or tiles */
} ew_step;

/* One thread's share of a profile; `since` is when its current lap began. */
typedef struct {
    double since;
    double seconds[EW_PROFILE_SLOTS];
    int64_t calls[EW_PROFILE_SLOTS];
} ew_laps;

struct ew_engine {
    ew_options options;
    _Atomic(const uint8_t *) *weights; /* [threads]: the copy that each reads */
    uint8_t *pool;
    ew_collectives collectives;
    uint8_t *memory;         /* everything below lies in here */
    uint8_t *stream, *shared, *tiles, *logits;
    ew_best *best;           /* [parts][rows] */
    ew_attention_scratch *attention; /* [threads] */
    ew_sample_scratch *samplers; /* [threads] */
    float *groups;           /* [threads][EW_GROUP_ROWS][EW_MAX_GROUP] */
    size_t column_rows, tile_bytes, logits_stride;
    ew_step steps[EW_RING];
    uint64_t launched, waited;
    _Atomic uint64_t *states; /* [parts][stages]: twice the number of the last step that claimed it, plus 1 when done */
    ew_flag *left;           /* [threads]: the last step that the thread has left */
    _Atomic int quit;
    ew_signal submitted, finished;
    pthread_t *threads;
    int started_threads;
    int tiles_granted;       /* the system lets this process use AMX tiles */
    ew_laps *laps;           /* [threads] */
    _Atomic int profiling;
};

EW_INLINE void ew_lap(ew_engine *e, int thread, int slot) {
    if (!atomic_load_explicit(&e->profiling, memory_order_relaxed)) return;
    ew_laps *l = &e->laps[thread];
    const double now = ew_now();
    l->seconds[slot] += now - l->since;
    l->calls[slot]++;
    l->since = now;
}

EW_INLINE int ew_bucket(int rows) {
    int bucket = 0;
    while (bucket < EW_BUCKETS - 1 && rows > 1 << bucket) bucket++;
    return bucket;
}

/* This part's share of the panels of product number `product`, in runs of `unit` panels, and how it is computed. */
EW_INLINE void ew_share(const ew_engine *e, ew_product *m, const ew_span *s, int product, int panels, int unit) {
    const uint8_t tactic = e->options.products[product * EW_BUCKETS + ew_bucket(s->rows)];
    m->block_rows = tactic & (EW_AHEAD - 1);
    m->ahead = tactic & EW_AHEAD;
    const int64_t units = (panels + unit - 1) / unit;
    const int last = (int)(units * (s->part + 1) / s->parts) * unit;
    m->rows = s->rows;
    m->tiles = e->tiles_granted;
    m->first_panel = (int)(units * s->part / s->parts) * unit;
    m->last_panel = last < panels ? last : panels;
}

/* Whether parts of a product can be whole groups of the rounding behind it and are still about equal: then each
 * part rounds its own, and the stage that would do so falls away. */
EW_INLINE int ew_rounds_itself(int groups, int parts) { return groups % parts == 0 || groups >= 8 * parts; }

static void ew_write_kv(ew_engine *e, const ew_step *p, const ew_span *s, int layer, const uint8_t *k, size_t k_stride, const uint8_t *v, size_t v_stride) {
    for (int r = s->split_first; r < s->split_last; r++) {
        const int token = s->base + r, position = p->positions[token];
        const int block = p->batch.block_tables[(size_t)p->sequences[token] * p->batch.max_blocks + position / EW_BLOCK];
        for (int h = 0; h < EW_KV_HEADS; h++)
            ew_kv_write_head(ew_kv_head(e->pool, EW_BLOCK_BYTES, block, layer, h), position % EW_BLOCK,
                             EW_ROW(const float, k, k_stride, r) + h * EW_HEAD_DIM, EW_ROW(const float, v, v_stride, r) + h * EW_HEAD_DIM);
    }
}

/* Work items are runs of tokens of one sequence, times KV heads. By columns they are handed out one by one;
 * in a tile the thread does them all. `q` and `out` point at the span's first row. A thread that holds no
 * item must not look at the batch: the step may be over, and its arrays gone. */
static void ew_attention(ew_engine *e, const ew_step *p, const ew_span *s, int phase, int layer, float scale, int window, const uint8_t *q, size_t q_stride, uint8_t *out, size_t out_stride) {
    ew_attention_scratch *z = &e->attention[s->thread];
    int item = 0, next = s->columns ? atomic_fetch_add(&p->begun[phase], 1) : 0;
    for (int r = 0; r < s->rows && (!s->columns || next < p->attention_items);) {
        const int sequence = p->sequences[s->base + r], position = p->positions[s->base + r];
        int count = p->batch.seq_starts[sequence + 1] - (s->base + r);
        if (count > EW_ITEM_TOKENS) count = EW_ITEM_TOKENS;
        if (count > s->rows - r) count = s->rows - r;
        for (int h = 0; h < EW_KV_HEADS; h++, item++) {
            if (s->columns && item != next) continue;
            ew_attend(z, e->pool, EW_BLOCK_BYTES, p->batch.block_tables + (size_t)sequence * p->batch.max_blocks, layer, h,
                      q + (size_t)r * q_stride, q_stride, out + (size_t)r * out_stride, out_stride, count, position, scale, window);
            if (!s->columns) continue;
            atomic_fetch_add_explicit(&p->finished[phase], 1, memory_order_release);
            next = atomic_fetch_add(&p->begun[phase], 1);
            if (next >= p->attention_items) return;
        }
        r += count;
    }
}

#endif
