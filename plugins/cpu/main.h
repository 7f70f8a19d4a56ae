/* The driver: threads take steps, run the emitted stages by columns or by tiles, sample, and report.
 *
 * The emitted file defines EW_PHASES, EW_STAGES, EW_PRODUCTS, EW_STREAM_BYTES and EW_LOCAL_BYTES (a row), and the
 * tables ew_stages (of all phases, then of the wanted rows) and ew_phase_starts.
 */
#ifndef EW_MAIN_H
#define EW_MAIN_H

#include "step.h"

/* One stage. `attention`: items are handed out instead of parts. `joins`: with redundant row ops it needs
 * nothing from other parts of the stage before it, and runs with it. */
typedef struct {
    void (*run)(ew_engine *, const ew_step *, const ew_span *, int iteration, int phase);
    int iteration, attention, joins;
    int groups; /* not 0: falls away where the product before it rounds so many groups itself */
} ew_stage;
static const ew_stage ew_stages[EW_STAGES];
static const int ew_phase_starts[EW_PHASES + 2]; /* the last two bound the stages of the wanted rows */

/* Stages of the driver's own, behind the emitted ones. */
enum { EW_PREPARE = EW_STAGES, EW_CHOOSE, EW_SAMPLE, EW_FINISH, EW_ALL_STAGES };

static size_t ew_round(size_t bytes) { return (bytes + 4095) / 4096 * 4096; }

static ew_span ew_columns_span(ew_engine *e, int thread, int part, int rows) {
    const int n = e->options.threads, redundant = rows <= e->options.redundant_rows;
    ew_span s = {.rows = rows, .part = part, .parts = n, .columns = 1, .redundant = redundant, .thread = thread};
    s.split_first = (int)((int64_t)rows * part / n);
    s.split_last = (int)((int64_t)rows * (part + 1) / n);
    s.first = redundant ? 0 : s.split_first;
    s.last = redundant ? rows : s.split_last;
    s.ours = e->shared;
    s.ours_rows = e->column_rows;
    s.mine = redundant ? e->tiles + (size_t)thread * e->tile_bytes : e->shared;
    s.mine_rows = redundant ? (size_t)e->options.tile_rows : e->column_rows;
    s.weights = atomic_load_explicit(&e->weights[thread], memory_order_relaxed);
    return s;
}

static ew_span ew_tile_span(ew_engine *e, int thread, int base, int rows) {
    uint8_t *local = e->tiles + (size_t)thread * e->tile_bytes;
    return (ew_span){.base = base, .rows = rows, .last = rows, .split_last = rows, .parts = 1, .thread = thread,
                     .mine = local, .ours = local, .mine_rows = (size_t)e->options.tile_rows, .ours_rows = (size_t)e->options.tile_rows,
                     .weights = atomic_load_explicit(&e->weights[thread], memory_order_relaxed)};
}

/* What one part of a stage does; `first` and `last` bound the emitted stages that run together. */
typedef void (*ew_part)(ew_engine *e, ew_step *p, int thread, int part, int phase, int first, int last);

/* Shares a stage out in `parts` parts and returns when all of them are done. */
static void ew_share_out(ew_engine *e, ew_step *p, int thread, int stage, int parts, ew_part run, int phase, int first, int last) {
    const uint64_t claimed = 2 * p->number;
    for (int i = 0; i < parts; i++) {
        const int part = (thread + i) % parts;
        _Atomic uint64_t *state = &e->states[(size_t)part * EW_ALL_STAGES + stage];
        uint64_t old = atomic_load_explicit(state, memory_order_relaxed);
        if (old >= claimed || !atomic_compare_exchange_strong(state, &old, claimed)) continue;
        run(e, p, thread, part, phase, first, last);
        atomic_store_explicit(state, claimed + 1, memory_order_release);
    }
    for (int part = 0; part < parts; part++) {
        uint32_t tries = 0;
        while (atomic_load_explicit(&e->states[(size_t)part * EW_ALL_STAGES + stage], memory_order_acquire) <= claimed) ew_relax(&tries);
    }
    ew_lap(e, thread, 0);
}

static void ew_wait_count(const atomic_int *count, int target) {
    uint32_t tries = 0;
    while (atomic_load_explicit(count, memory_order_acquire) < target) ew_relax(&tries);
}

static void ew_columns_part(ew_engine *e, ew_step *p, int thread, int part, int phase, int first, int last) {
    const ew_span s = ew_columns_span(e, thread, part, phase < EW_PHASES ? p->batch.tokens : p->batch.rows);
    for (int i = first; i < last; i++) ew_stages[i].run(e, p, &s, ew_stages[i].iteration, phase);
}

static void ew_run_columns(ew_engine *e, ew_step *p, int thread, int phase, int rows) {
    const int redundant = rows <= e->options.redundant_rows, end = ew_phase_starts[phase + 1];
    for (int i = ew_phase_starts[phase]; i < end;) {
        if (ew_stages[i].attention) {
            const ew_span s = ew_columns_span(e, thread, thread, rows);
            ew_stages[i].run(e, p, &s, ew_stages[i].iteration, phase);
            ew_wait_count(&p->finished[phase], p->attention_items);
            ew_lap(e, thread, 0);
            i++;
            continue;
        }
        if (ew_stages[i].groups && ew_rounds_itself(ew_stages[i].groups, e->options.threads)) {
            i++;
            continue;
        }
        int last = i + 1;
        while (last < end && redundant && ew_stages[last].joins) last++;
        ew_share_out(e, p, thread, i, e->options.threads, ew_columns_part, phase, i, last);
        i = last;
    }
}

static void ew_run_tiles(ew_engine *e, ew_step *p, int thread) {
    const int tokens = p->batch.tokens, n = e->options.threads, most = n * e->options.tile_rows;
    const int tiles = n * ((tokens + most - 1) / most), units = (tokens + 15) / 16;
    for (int phase = 0; phase < EW_PHASES; phase++) {
        /* the last tokens first: they attend to the most, and what is long should not begin late */
        for (int k; (k = tiles - 1 - atomic_fetch_add(&p->begun[phase], 1)) >= 0;) {
            const int first = (int)((int64_t)units * k / tiles) * 16, end = (int)((int64_t)units * (k + 1) / tiles) * 16;
            const ew_span s = ew_tile_span(e, thread, first, (end < tokens ? end : tokens) - first);
            for (int i = ew_phase_starts[phase]; i < ew_phase_starts[phase + 1]; i++) ew_stages[i].run(e, p, &s, ew_stages[i].iteration, phase);
            atomic_fetch_add_explicit(&p->finished[phase], 1, memory_order_release);
        }
        ew_wait_count(&p->finished[phase], tiles);
        ew_lap(e, thread, 0);
    }
}

/* The highest logit that any part of the head has found in a row, and its id. */
static int32_t ew_highest_found(const ew_engine *e, int row, float *high) {
    int32_t id = -1;
    *high = -__builtin_inff();
    for (int t = 0; t < e->options.threads; t++)
        for (int i = 0; i < EW_LANES; i++) {
            const ew_best *b = &e->best[(size_t)t * e->options.max_batch_size + row];
            if (b->id[i] < EW_VOCAB && (b->best[i] > *high || (b->best[i] == *high && b->id[i] < id))) {
                *high = b->best[i];
                id = b->id[i];
            }
        }
    return id;
}

/* Draws from the highest logits that the parts have found; ids ascend from part to part. */
static int ew_draw_found(const ew_engine *e, const ew_step *p, int row, float high, ew_sample_scratch *z) {
    ew_top_list all = {p->wanted[row], 0, z->candidates};
    for (int t = 0; t < e->options.threads; t++) {
        const ew_top_list *part = &e->best[(size_t)t * e->options.max_batch_size + row].top;
        for (int i = 0; i < part->count && ew_top_wants(&all, part->items[i].value); i++) ew_top_insert(&all, part->items[i].value, part->items[i].id);
    }
    return ew_draw_top(p->sampling, row, high, &all);
}

static void ew_sample_part(ew_engine *e, ew_step *p, int thread, int part, int phase, int first, int last) {
    (void)phase, (void)first, (void)last;
    const ew_sampling *s = p->sampling;
    const int rows = p->batch.rows, n = e->options.threads;
    for (int r = part; r < rows; r += n) {
        const float *logits = (const float *)(e->logits + (size_t)r * e->logits_stride);
        if (p->result->logits) memcpy(p->result->logits + (size_t)r * EW_VOCAB, logits, (size_t)EW_VOCAB * 4);
        if (!s) continue;
        const int decided = ew_decided_by(s, r, EW_VOCAB);
        if (p->wanted[r] == EW_HEAD_ALL && decided) {
            ew_sample_row(s, r, logits, EW_VOCAB, p->result, &e->samplers[thread]);
        } else {
            float high;
            const int32_t id = ew_highest_found(e, r, &high);
            const int finite = high - high == 0;
            p->result->tokens[r] = !finite ? -1 : decided ? ew_draw_found(e, p, r, high, &e->samplers[thread]) : id;
            if (p->result->logprobs) p->result->logprobs[r] = __builtin_nanf("");
        }
        p->tokens[r] = p->result->tokens[r];
    }
}

/* Fills in the tokens that the step before has sampled. */
static void ew_prepare_part(ew_engine *e, ew_step *p, int thread, int part, int phase, int first, int last) {
    (void)thread, (void)part, (void)phase, (void)first, (void)last;
    const ew_step *before = &e->steps[(p->number - 1) % EW_RING];
    for (int i = 0; i < p->batch.tokens; i++)
        if (p->ids[i] < 0) {
            const int32_t id = before->tokens[-1 - p->ids[i]];
            p->ids[i] = id < 0 ? 0 : id; /* a failed row's successor is thrown away by the host */
        }
}

/* Decides, before the head, how many logits it keeps of each row: all when it is not known yet how rows are sampled. */
static void ew_choose_part(ew_engine *e, ew_step *p, int thread, int part, int phase, int first, int last) {
    (void)e, (void)thread, (void)part, (void)phase, (void)first, (void)last;
    const int known = atomic_load_explicit(&p->ready, memory_order_acquire);
    for (int r = 0; r < p->batch.rows; r++) {
        const int all = !known || !p->sampling || p->result->logits, decided = all ? -1 : ew_decided_by(p->sampling, r, EW_VOCAB);
        p->wanted[r] = decided < 0 || decided > EW_HEAD_TOP ? EW_HEAD_ALL : (uint8_t)decided;
    }
}

static void ew_finish_part(ew_engine *e, ew_step *p, int thread, int part, int phase, int first, int last) {
    (void)thread, (void)part, (void)phase, (void)first, (void)last;
    p->result->seconds = ew_now() - p->started;
    if (!e->options.caller_works) ew_signal_raise(&e->finished);
}

static void ew_run(ew_engine *e, ew_step *p, int thread) {
    if (atomic_load_explicit(&e->profiling, memory_order_relaxed)) e->laps[thread].since = ew_now();
    if (p->deferred) ew_share_out(e, p, thread, EW_PREPARE, 1, ew_prepare_part, 0, 0, 0);
    if (p->batch.tokens < e->options.column_rows * e->options.threads)
        for (int phase = 0; phase < EW_PHASES; phase++) ew_run_columns(e, p, thread, phase, p->batch.tokens);
    else ew_run_tiles(e, p, thread);
    if (p->batch.rows) {
        ew_share_out(e, p, thread, EW_CHOOSE, 1, ew_choose_part, 0, 0, 0);
        ew_run_columns(e, p, thread, EW_PHASES, p->batch.rows);
    }
    uint32_t tries = 0;
    while (!atomic_load_explicit(&p->ready, memory_order_acquire)) ew_relax(&tries);
    ew_lap(e, thread, 0);
    if (p->batch.rows) ew_share_out(e, p, thread, EW_SAMPLE, e->options.threads, ew_sample_part, 0, 0, 0);
    ew_share_out(e, p, thread, EW_FINISH, 1, ew_finish_part, 0, 0, 0);
    ew_lap(e, thread, EW_PROFILE_SLOTS - 1);
    atomic_store_explicit(&e->left[thread].value, (uint32_t)p->number, memory_order_release);
}

typedef struct { ew_engine *engine; int thread; } ew_worker_start;

static void *ew_worker(void *argument) {
    ew_worker_start start = *(ew_worker_start *)argument;
    free(argument);
    ew_engine *e = start.engine;
    for (uint64_t step = 1;; step++) {
        ew_signal_wait(&e->submitted, (uint32_t)step, 2000);
        if (atomic_load(&e->quit)) return 0;
        ew_run(e, &e->steps[step % EW_RING], start.thread);
    }
}

static size_t ew_layout(ew_engine *e, const ew_options *o, uint8_t *memory) {
    const size_t threads = (size_t)o->threads, batch = (size_t)o->max_batch_size, tokens = (size_t)o->max_num_tokens;
    const size_t vocab = ((size_t)EW_VOCAB + EW_PANEL - 1) / EW_PANEL * EW_PANEL;
    size_t at = 0;
    e->column_rows = threads * (size_t)o->column_rows > batch ? threads * (size_t)o->column_rows : batch;
    e->tile_bytes = ew_round((size_t)EW_LOCAL_BYTES * (size_t)o->tile_rows);
    e->logits_stride = vocab * 4;
#define EW_AT(type) ((type *)((uintptr_t)memory + at)) /* `memory` may be null: only sizes are asked for then */
#define EW_TAKE(field, type, count) (e->field = EW_AT(type), at += ew_round((count) * sizeof(type)))
    EW_TAKE(stream, uint8_t, (size_t)EW_STREAM_BYTES * tokens);
    EW_TAKE(shared, uint8_t, (size_t)EW_LOCAL_BYTES * e->column_rows);
    EW_TAKE(tiles, uint8_t, e->tile_bytes * threads);
    EW_TAKE(logits, uint8_t, e->logits_stride * batch);
    EW_TAKE(best, ew_best, threads * batch);
    EW_TAKE(attention, ew_attention_scratch, threads);
    EW_TAKE(samplers, ew_sample_scratch, threads);
    EW_TAKE(groups, float, threads * EW_GROUP_ROWS * EW_MAX_GROUP);
    EW_TAKE(states, _Atomic uint64_t, threads * EW_ALL_STAGES);
    EW_TAKE(left, ew_flag, threads);
    EW_TAKE(weights, _Atomic(const uint8_t *), threads);
    EW_TAKE(threads, pthread_t, threads);
    EW_TAKE(laps, ew_laps, threads);
    for (int i = 0; i < EW_RING; i++) {
        EW_TAKE(steps[i].ids, int32_t, tokens);
        EW_TAKE(steps[i].positions, int32_t, tokens);
        EW_TAKE(steps[i].sequences, int32_t, tokens);
        EW_TAKE(steps[i].tokens, int32_t, batch);
        EW_TAKE(steps[i].wanted, uint8_t, batch);
        EW_TAKE(steps[i].begun, atomic_int, EW_PHASES);
        EW_TAKE(steps[i].finished, atomic_int, EW_PHASES);
    }
#undef EW_TAKE
    for (size_t t = 0; t < threads; t++) {
        uint8_t *part[3];
        const size_t bytes[3] = {vocab * 4, vocab * 4, vocab * sizeof(ew_candidate)};
        for (int i = 0; i < 3; i++) {
            part[i] = EW_AT(uint8_t);
            at += ew_round(bytes[i]);
        }
        if (memory) e->samplers[t] = (ew_sample_scratch){(float *)part[0], (int32_t *)part[1], (ew_candidate *)part[2]};
    }
#undef EW_AT
    return at;
}

int32_t ew_abi_version(void) { return EW_ABI_VERSION; }
int32_t ew_products(void) { return EW_PRODUCTS; }
int32_t ew_max_rows(void) { return EW_MAX_ROWS; }
int64_t ew_block_bytes(void) { return EW_BLOCK_BYTES; }
int64_t ew_working_bytes(const ew_options *options) {
    ew_engine e = {0};
    return (int64_t)ew_layout(&e, options, 0);
}

ew_engine *ew_open(const ew_options *options, const uint8_t *weights, uint8_t *kv_pool, const ew_collectives *collectives) {
    ew_engine *e = calloc(1, sizeof *e);
    if (!e) return 0;
    e->memory = aligned_alloc(4096, (size_t)ew_working_bytes(options));
    if (!e->memory) {
        free(e);
        return 0;
    }
    ew_layout(e, options, e->memory);
    e->options = *options;
    e->pool = kv_pool;
    if (collectives) e->collectives = *collectives;
    for (int i = 0; i < options->threads * EW_ALL_STAGES; i++) atomic_init(&e->states[i], 0);
    for (int t = 0; t < options->threads; t++) {
        atomic_init(&e->left[t].value, 0);
        atomic_init(&e->weights[t], weights);
        memset(e->samplers[t].counts, 0, (size_t)EW_VOCAB * 4);
    }
    memset(e->laps, 0, sizeof *e->laps * (size_t)options->threads);
#if defined(EW_HAS_AMX)
    e->tiles_granted = ew_amx_request() == 0; /* without them the vector kernels give the same bits */
#endif
    ew_signal_init(&e->submitted);
    ew_signal_init(&e->finished);
    for (int t = options->caller_works ? 1 : 0; t < options->threads; t++) {
        ew_worker_start *start = malloc(sizeof *start);
        if (start) *start = (ew_worker_start){e, t};
        if (!start || pthread_create(&e->threads[e->started_threads], 0, ew_worker, start)) {
            free(start);
            ew_close(e);
            return 0;
        }
        e->started_threads++;
    }
    return e;
}

int32_t ew_launch(ew_engine *e, const ew_batch *batch) {
    if (e->launched - e->waited >= 2) return -1;
    if (e->launched != e->waited && !atomic_load(&e->steps[e->launched % EW_RING].ready)) return -1; /* sample it first */
    if (batch->tokens < 1 || batch->tokens > e->options.max_num_tokens || batch->seqs > e->options.max_batch_size || batch->rows > e->options.max_batch_size) return -1;
    const uint64_t number = e->launched + 1;
    ew_step *p = &e->steps[number % EW_RING];
    for (int t = 0; number > EW_RING && t < e->options.threads; t++) {
        uint32_t tries = 0;
        while ((int32_t)(atomic_load_explicit(&e->left[t].value, memory_order_acquire) - (uint32_t)(number - EW_RING)) < 0) ew_relax(&tries);
    }
    p->number = number;
    p->batch = *batch;
    p->sampling = 0;
    p->result = 0;
    p->started = ew_now();
    p->deferred = 0;
    p->attention_items = 0;
    atomic_store(&p->ready, 0);
    for (int i = 0; i < EW_PHASES; i++) {
        atomic_store_explicit(&p->begun[i], 0, memory_order_relaxed);
        atomic_store_explicit(&p->finished[i], 0, memory_order_relaxed);
    }
    for (int s = 0; s < batch->seqs; s++) {
        const int length = batch->seq_starts[s + 1] - batch->seq_starts[s];
        p->attention_items += (length + EW_ITEM_TOKENS - 1) / EW_ITEM_TOKENS * EW_KV_HEADS;
        for (int i = batch->seq_starts[s]; i < batch->seq_starts[s + 1]; i++) {
            p->sequences[i] = s;
            p->positions[i] = batch->past_tokens[s] + i - batch->seq_starts[s];
            p->ids[i] = batch->token_ids[i];
            p->deferred |= p->ids[i] < 0;
        }
    }
    e->launched++;
    ew_signal_raise(&e->submitted);
    return 0;
}

int32_t ew_sample(ew_engine *e, const ew_sampling *sampling, ew_result *result) {
    ew_step *p = &e->steps[e->launched % EW_RING];
    if (e->launched == e->waited || atomic_load(&p->ready)) return -1;
    p->sampling = sampling;
    p->result = result;
    atomic_store_explicit(&p->ready, 1, memory_order_release);
    return 0;
}

int32_t ew_sample_logits(ew_engine *e, const ew_sampling *sampling, int32_t rows, const float *logits, ew_result *result) {
    if (e->launched != e->waited) return -1;
    for (int r = 0; r < rows; r++) ew_sample_row(sampling, r, logits + (size_t)r * EW_VOCAB, EW_VOCAB, result, &e->samplers[0]);
    return 0;
}

int32_t ew_wait(ew_engine *e) {
    if (e->launched == e->waited) return -1;
    const uint64_t step = e->waited + 1;
    if (!atomic_load(&e->steps[step % EW_RING].ready)) return -1;
    if (e->options.caller_works) ew_run(e, &e->steps[step % EW_RING], 0);
    else ew_signal_wait(&e->finished, (uint32_t)step, 200);
    e->waited = step;
    return 0;
}

int32_t ew_use_weights(ew_engine *e, int32_t thread, const uint8_t *weights) {
    if (e->launched != e->waited) return -1;
    atomic_store(&e->weights[thread], weights);
    return 0;
}

int32_t ew_keep_thread(ew_engine *e, int32_t thread, const int32_t *cpus, int32_t count) {
    const int own = thread - (e->options.caller_works ? 1 : 0);
    cpu_set_t set;
    CPU_ZERO(&set);
    for (int i = 0; i < count; i++)
        if (cpus[i] >= 0 && cpus[i] < CPU_SETSIZE) CPU_SET(cpus[i], &set);
    return own < 0 || pthread_setaffinity_np(e->threads[own], sizeof set, &set) ? -1 : 0;
}

void ew_close(ew_engine *e) {
    atomic_store(&e->quit, 1);
    ew_signal_raise(&e->submitted);
    for (int t = 0; t < e->started_threads; t++) pthread_join(e->threads[t], 0);
    ew_signal_free(&e->submitted);
    ew_signal_free(&e->finished);
    free(e->memory);
    free(e);
}

int32_t ew_profile_slots(void) { return EW_PROFILE_SLOTS; }
const char *ew_profile_name(int32_t slot) { return slot >= 0 && slot < EW_PROFILE_SLOTS ? ew_profile_names[slot] : ""; }
void ew_profile(ew_engine *e, int32_t on) {
    for (int t = 0; on && t < e->options.threads; t++) e->laps[t].since = ew_now(); /* of threads that are late with an old step */
    atomic_store(&e->profiling, on);
}
void ew_profile_read(ew_engine *e, double *seconds, int64_t *calls) {
    for (int i = 0; i < EW_PROFILE_SLOTS; i++) {
        seconds[i] = 0;
        calls[i] = 0;
        for (int t = 0; t < e->options.threads; t++) {
            seconds[i] += e->laps[t].seconds[i];
            calls[i] += e->laps[t].calls[i];
            e->laps[t].seconds[i] = 0;
            e->laps[t].calls[i] = 0;
        }
    }
}

#endif
