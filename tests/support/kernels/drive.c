/* Runs an engine through its ABI for valgrind: prompts, generation, every kind of sampling, all ways of threads.
 *
 *     drive ENGINE WEIGHTS WEIGHT_BYTES VOCAB FILL
 *
 * All memory that the engine is given is just as large as it may rely on. KV blocks begin with the byte FILL
 * everywhere: attention reads whole vectors of positions, and masks out those that were never written. valgrind
 * does not follow every mask, so they may not be left undefined. Prints the tokens, which FILL must not change.
 */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "engine.h"

enum { SEQS = 3, MAX_BLOCKS = 8, TOKENS = 200, TOP = 3 };
#define ABI(X) X(ew_block_bytes) X(ew_products) X(ew_max_rows) X(ew_open) X(ew_launch) X(ew_sample) X(ew_sample_logits) X(ew_wait) X(ew_use_weights) X(ew_close)

static struct {
#define FIELD(name) __typeof__(name) *name;
    ABI(FIELD)
} abi;
static int vocab, fill;

static void fail(const char *what) {
    fprintf(stderr, "drive: %s\n", what);
    exit(2);
}
static void *make(size_t bytes) {
    void *memory = calloc(1, bytes);
    if (!memory) fail("no memory");
    return memory;
}

/* One step of `counts` tokens of each sequence behind `past`; `ids` may name rows of the step before. */
static void launch(ew_engine *e, const int *counts, int32_t *past, int id, int rows, ew_batch *b, int32_t *arrays[5]) {
    int32_t *ids = arrays[0] = make(TOKENS * 4), *starts = arrays[1] = make((SEQS + 1) * 4), *pasts = arrays[2] = make(SEQS * 4);
    int32_t *tables = arrays[3] = make(SEQS * MAX_BLOCKS * 4), *wanted = arrays[4] = make(SEQS * 4);
    for (int s = 0; s < SEQS; s++) {
        starts[s + 1] = starts[s] + counts[s];
        pasts[s] = past[s];
        past[s] += counts[s];
        wanted[s] = starts[s + 1] - 1;
        for (int i = starts[s]; i < starts[s + 1]; i++) ids[i] = id < 0 ? -1 - s : (id + 31 * i) % vocab;
        for (int i = 0; i < MAX_BLOCKS; i++) tables[s * MAX_BLOCKS + i] = i * SEQS + s;
    }
    *b = (ew_batch){starts[SEQS], SEQS, rows, MAX_BLOCKS, ids, starts, pasts, tables, wanted};
    if (abi.ew_launch(e, b)) fail("a step was refused");
}

static void finish(ew_engine *e, int32_t *arrays[5]) {
    if (abi.ew_wait(e)) fail("a step could not be waited for");
    for (int i = 0; i < 5; i++) free(arrays[i]);
}

/* Row 0 is greedy; the others are sampled with everything that there is. */
static ew_sampling sampling_of(void) {
    static float temperature[SEQS] = {0, 0.8f, 1.5f}, top_p[SEQS] = {1, 0.9f, 1}, min_p[SEQS] = {0, 0, 0.01f}, ones[SEQS] = {1, 1.2f, 1}, some[SEQS] = {0, 0.3f, 0};
    static int32_t top_k[SEQS] = {0, 40, 0}, positions[SEQS] = {1, 2, 3}, logprobs[SEQS] = {-1, TOP, 0}, prompts[SEQS] = {0, 2, 0};
    static int32_t history_starts[SEQS + 1] = {0, 0, 4, 4}, history[4] = {5, 6, 7, 7}, bias_starts[SEQS + 1] = {0, 0, 1, 1}, bias_ids[1] = {9};
    static float bias[1] = {2};
    static uint64_t seeds[SEQS] = {1, 2, 3};
    const int words = (vocab + 31) / 32;
    uint32_t *masks = make((size_t)SEQS * (size_t)words * 4);
    memset(masks, 0xFF, (size_t)SEQS * (size_t)words * 4);
    masks[2 * words] = 0xFFFF0000u;
    return (ew_sampling){temperature, top_p, min_p, ones, some, some, top_k, positions, logprobs, history_starts, history, prompts,
                         bias_starts, bias_ids, bias, seeds, masks, words, TOP};
}

static void run(const uint8_t *weights, int threads, int caller_works) {
    const int products = abi.ew_products();
    uint8_t *cuts = make((size_t)products * EW_BUCKETS); /* every number of rows at once, fetched ahead or not */
    for (int i = 0; i < products * EW_BUCKETS; i++) cuts[i] = (uint8_t)(1 + i % abi.ew_max_rows() + i % 2 * EW_AHEAD);
    const ew_options options = {threads, TOKENS, SEQS, caller_works, 32, 24, 2, cuts};
    const size_t pool_bytes = (size_t)abi.ew_block_bytes() * SEQS * MAX_BLOCKS;
    uint8_t *pool = aligned_alloc(64, pool_bytes);
    if (!pool) fail("no memory");
    memset(pool, fill, pool_bytes);
    ew_engine *e = abi.ew_open(&options, weights, pool, 0);
    if (!e) fail("the engine cannot be opened");
    static const int prompts[][SEQS] = {{33, 1, 5}, {160, 3, 32}, {1, 1, 1}};
    int32_t past[SEQS] = {0}, *arrays[2][5], tokens[2][SEQS], ids[SEQS * TOP];
    float logprobs[SEQS], top[SEQS * TOP], *logits = make((size_t)SEQS * (size_t)vocab * 4);
    ew_batch batch;
    ew_sampling sampling = sampling_of();
    for (int i = 0; i < 3; i++) {
        ew_result result = {tokens[0], logprobs, ids, top, i ? logits : 0, 0};
        launch(e, prompts[i], past, i, SEQS, &batch, arrays[0]);
        abi.ew_sample(e, &sampling, &result);
        finish(e, arrays[0]);
        for (int s = 0; s < SEQS; s++) printf("%d ", tokens[0][s]);
    }
    ew_result result = {tokens[0], logprobs, ids, top, 0, 0};
    abi.ew_sample_logits(e, &sampling, SEQS, logits, &result);
    if (abi.ew_use_weights(e, threads - 1, weights)) fail("weights could not be moved");
    for (int i = 0; i < 12; i++) { /* one step ahead, as overlap runs them */
        static ew_result results[2];
        results[i % 2] = (ew_result){tokens[i % 2], logprobs, ids, top, 0, 0};
        launch(e, prompts[2], past, i ? -1 : 4, SEQS, &batch, arrays[i % 2]);
        abi.ew_sample(e, &sampling, &results[i % 2]);
        if (i) finish(e, arrays[(i - 1) % 2]);
        if (i) printf("%d %d %d ", tokens[(i - 1) % 2][0], tokens[(i - 1) % 2][1], tokens[(i - 1) % 2][2]);
    }
    finish(e, arrays[1]);
    printf("\n");
    abi.ew_close(e);
    free((void *)sampling.masks);
    free(logits);
    free(pool);
    free(cuts);
}

int main(int count, char **arguments) {
    if (count != 6) fail("five arguments are needed");
    void *engine = dlopen(arguments[1], RTLD_NOW);
    if (!engine) fail(dlerror());
#define LOAD(name) \
    if (!(abi.name = (__typeof__(abi.name))dlsym(engine, #name))) fail(#name);
    ABI(LOAD)
    const size_t bytes = (size_t)atoll(arguments[3]);
    vocab = atoi(arguments[4]);
    fill = atoi(arguments[5]);
    uint8_t *weights = aligned_alloc(4096, bytes);
    FILE *file = fopen(arguments[2], "rb");
    if (!weights || !file || fread(weights, 1, bytes, file) != bytes) fail("the weights cannot be read");
    fclose(file);
    for (int threads = 1; threads <= 3; threads++) run(weights, threads, threads != 2);
    free(weights);
    dlclose(engine);
    return 0;
}
