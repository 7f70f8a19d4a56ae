/* The ABI of a compiled engine: what the host hands in and gets back.
 *
 * Calls come from one host thread, in the order launch, sample, wait; a second step may be launched
 * before the first is waited for. Arrays belong to the host and must live until their step's wait
 * returns. An engine has no global state: several can live in one process.
 */
#ifndef EW_ENGINE_H
#define EW_ENGINE_H

#include <stdint.h>

#define EW_ABI_VERSION 4

/* What a rank needs from its neighbours; a single rank leaves it empty. */
typedef struct {
    int32_t rank, ranks;
    void *context;
    void (*all_reduce)(void *context, float *data, int64_t count);
} ew_collectives;

typedef struct {
    int32_t threads;
    int32_t max_num_tokens;  /* tokens in a step */
    int32_t max_batch_size;  /* sequences, and logit rows, in a step */
    int32_t caller_works;    /* 1: the thread that waits is one of `threads`; 0: the engine has all of its own */
    /* Tactics: how work is cut. None of them changes a bit of a result. */
    int32_t tile_rows;       /* tokens that a thread takes through a phase at once, where a step is split by tiles */
    int32_t column_rows;     /* a thread: steps of fewer tokens are split by columns */
    int32_t redundant_rows;  /* in a step of at most so many every part does row ops for itself and saves a stage */
    const uint8_t *products; /* [ew_products()][EW_BUCKETS]: rows of a block, plus EW_AHEAD to prefetch */
} ew_options;

/* Rows that a product is called with, in buckets: 1, 2, 3-4, 5-8, 9-16, 17-32, 33-64, more. */
#define EW_BUCKETS 8
#define EW_AHEAD 16

typedef struct {
    int32_t tokens, seqs, rows, max_blocks;
    const int32_t *token_ids;    /* [tokens]; -1 - r: what row r of the step before sampled */
    const int32_t *seq_starts;   /* [seqs + 1] */
    const int32_t *past_tokens;  /* [seqs] */
    const int32_t *block_tables; /* [seqs][max_blocks] */
    const int32_t *logit_rows;   /* [rows], token indices */
} ew_batch;

typedef struct {
    const float *temperature, *top_p, *min_p, *repetition_penalty, *presence_penalty, *frequency_penalty;
    const int32_t *top_k, *positions, *num_logprobs, *history_starts, *history, *prompt_lengths, *bias_starts, *bias_ids;
    const float *bias_values;
    const uint64_t *seeds;
    const uint32_t *masks; /* [rows][mask_words] or null */
    int32_t mask_words;
    int32_t top_logprobs; /* width of the result's tables */
} ew_sampling;

/* Where a step's results go; any pointer may be null. */
typedef struct {
    int32_t *tokens;      /* [rows]; -1: the row's logits hold no finite maximum */
    float *logprobs;      /* [rows]; NaN where not asked */
    int32_t *top_ids;     /* [rows][top_logprobs]; -1 pads */
    float *top_logprobs;  /* [rows][top_logprobs] */
    float *logits;        /* [rows][vocab] */
    double seconds;       /* from launch to completion */
} ew_result;

typedef struct ew_engine ew_engine;

#define EW_EXPORT __attribute__((visibility("default")))

EW_EXPORT int32_t ew_abi_version(void);
/* Bytes of one KV block, all layers of it. */
EW_EXPORT int64_t ew_block_bytes(void);
/* Bytes of working memory that ew_open will take for these options. */
EW_EXPORT int64_t ew_working_bytes(const ew_options *options);
/* Products in the emitted code, and the rows that a block of one may have. */
EW_EXPORT int32_t ew_products(void);
EW_EXPORT int32_t ew_max_rows(void);
/* Null when memory or threads cannot be had. `weights` and `kv_pool` stay the host's. */
EW_EXPORT ew_engine *ew_open(const ew_options *options, const uint8_t *weights, uint8_t *kv_pool, const ew_collectives *collectives);
/* 0, or -1 when two steps are in flight, the step before was not given to ew_sample yet, or the batch is
 * larger than the options allow. */
EW_EXPORT int32_t ew_launch(ew_engine *engine, const ew_batch *batch);
/* Says how the step launched last is sampled (null for a step that only wants logits) and where its results go. */
EW_EXPORT int32_t ew_sample(ew_engine *engine, const ew_sampling *sampling, ew_result *result);
/* Samples rows of logits, [rows][vocab], which the host has changed, as a step's own are sampled; -1 while a step is
 * in flight. */
EW_EXPORT int32_t ew_sample_logits(ew_engine *engine, const ew_sampling *sampling, int32_t rows, const float *logits, ew_result *result);
/* Waits for the oldest step in flight; -1 when there is none or it was never given to ew_sample. */
EW_EXPORT int32_t ew_wait(ew_engine *engine);
/* One thread reads the weights from another copy from the next step on; -1 while a step is in flight. */
EW_EXPORT int32_t ew_use_weights(ew_engine *engine, int32_t thread, const uint8_t *weights);
/* Keeps one of the engine's own threads on some cores; -1 for the caller's thread, or if the system refuses. */
EW_EXPORT int32_t ew_keep_thread(ew_engine *engine, int32_t thread, const int32_t *cpus, int32_t count);
EW_EXPORT void ew_close(ew_engine *engine);

/* Where the time goes: every call of the emitted code has a name and a slot; slot 0 is waiting for others.
 * Profiling is off until it is first asked for; reading adds all threads up and starts again from zero. */
EW_EXPORT int32_t ew_profile_slots(void);
EW_EXPORT const char *ew_profile_name(int32_t slot);
EW_EXPORT void ew_profile(ew_engine *engine, int32_t on);
EW_EXPORT void ew_profile_read(ew_engine *engine, double *seconds, int64_t *calls);

#endif
