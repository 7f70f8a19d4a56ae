/* Sampling of one row of logits: penalties, bias, mask, temperature, top-k, top-p, min-p, a draw, log-probabilities.
 *
 * A row is sampled by one thread in one fixed order, and the draw depends on the row's seed and
 * position alone, so neither neighbours nor thread counts can change it.
 */
#ifndef EW_SAMPLE_H
#define EW_SAMPLE_H

#include <stdlib.h>
#include "engine.h"
#include "top.h"

typedef struct {
    float *adjusted;          /* [vocab padded to whole vectors]: logits after penalties, then weights */
    int32_t *counts;          /* [vocab], zero between rows */
    ew_candidate *candidates; /* [vocab] */
} ew_sample_scratch;

/* Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011): a uniform in [0, 1). */
static double ew_philox(uint64_t seed, uint64_t position) {
    uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
    uint32_t c0 = (uint32_t)position, c1 = (uint32_t)(position >> 32), c2 = 0, c3 = 0;
    for (int i = 0; i < 10; i++) {
        uint64_t a = (uint64_t)0xD2511F53u * c0, b = (uint64_t)0xCD9E8D57u * c2;
        uint32_t d0 = (uint32_t)(b >> 32) ^ c1 ^ k0, d2 = (uint32_t)(a >> 32) ^ c3 ^ k1;
        c1 = (uint32_t)b;
        c3 = (uint32_t)a;
        c0 = d0;
        c2 = d2;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    return (double)(((uint64_t)c0 << 21) ^ (c1 >> 11)) * (1.0 / 9007199254740992.0);
}

/* Natural logarithm of a double in [1, 2^40): log2 by the exponent, then atanh's series on the mantissa. */
static double ew_log(double x) {
    int exponent = 0;
    while (x >= 1.4142135623730951) {
        x *= 0.5;
        exponent++;
    }
    const double t = (x - 1) / (x + 1), s = t * t;
    double sum = 0, term = t;
    for (int i = 1; i < 24; i += 2) {
        sum += term / i;
        term *= s;
    }
    return 2 * sum + exponent * 0.6931471805599453;
}

static int ew_candidate_order(const void *a, const void *b) {
    const ew_candidate *x = a, *y = b;
    if (x->value != y->value) return x->value > y->value ? -1 : 1;
    return x->id < y->id ? -1 : x->id > y->id;
}

/* The lowest id that has the highest value; NaNs are passed over, -1 if there is nothing else. */
static int ew_argmax(const float *x, int n) {
    float high = -__builtin_inff();
    int best = -1;
    for (int i = 0; i < n; i++)
        if (x[i] > high) {
            high = x[i];
            best = i;
        }
    return best;
}

static float ew_highest(const float *x, int n) {
    vf most = vf_set1(-__builtin_inff());
    int i = 0;
    for (; i + EW_LANES <= n; i += EW_LANES) most = vf_max(vf_load(x + i), most);
    float high = vf_maximum(most);
    for (; i < n; i++) high = x[i] > high ? x[i] : high;
    return high;
}

/* log of the sum of e^x; lanes are summed in double, in order of position */
static double ew_log_sum_exp(const float *x, int n, float high) {
    double total = 0;
    int i = 0;
    for (; i + EW_LANES <= n; i += EW_LANES) total += (double)vf_sum(vf_exp2((vf_load(x + i) - high) * EW_LOG2E));
    for (; i < n; i++) total += (double)vf_exp2(vf_set1((x[i] - high) * EW_LOG2E))[0];
    return ew_log(total) + (double)high;
}

/* Penalties as in the CTRL paper (arXiv:1909.05858) and OpenAI's API, then bias, then the mask. */
static void ew_adjust(const ew_sampling *s, int row, const float *logits, int vocab, ew_sample_scratch *z) {
    float *x = z->adjusted;
    memcpy(x, logits, (size_t)vocab * 4);
    const int32_t *history = s->history + s->history_starts[row];
    const int length = s->history_starts[row + 1] - s->history_starts[row], prompt = s->prompt_lengths[row];
    for (int i = prompt; i < length; i++) z->counts[history[i]]++;
    for (int i = 0; i < length; i++) {
        const int id = history[i], n = z->counts[id];
        if (n == -1) continue; /* done already */
        if (s->repetition_penalty[row] != 1.0f) x[id] = x[id] > 0 ? x[id] / s->repetition_penalty[row] : x[id] * s->repetition_penalty[row];
        if (n > 0) x[id] -= s->presence_penalty[row] + s->frequency_penalty[row] * (float)n;
        z->counts[id] = -1;
    }
    for (int i = 0; i < length; i++) z->counts[history[i]] = 0;
    for (int i = s->bias_starts[row]; i < s->bias_starts[row + 1]; i++) x[s->bias_ids[i]] += s->bias_values[i];
    if (s->masks) {
        const uint32_t *mask = s->masks + (size_t)row * s->mask_words;
        for (int i = 0; i < vocab; i++)
            if (!(mask[i / 32] >> (i % 32) & 1)) x[i] = -__builtin_inff();
    }
}

/* The candidates that top-p and min-p leave of all tokens, likeliest first, with their weights; returns how many.
 * Only tokens within a distance of the best are sorted: the distance doubles until the filters are decided. */
static int ew_filter(const float *x, int vocab, float top_p, float min_p, double total, ew_candidate *out) {
    for (float floor = 0.0183156389f;; floor = floor * floor) { /* weights are e^-4, e^-8, ... of the best */
        int n = 0;
        double mass = 0;
        const int all = floor < 1e-38f;
        for (int i = 0; i < vocab; i++)
            if (x[i] >= floor || (all && x[i] > 0)) {
                out[n++] = (ew_candidate){x[i], i};
                mass += (double)x[i];
            }
        const int enough = all || mass >= (double)top_p * total || (min_p > 0 && min_p >= floor);
        if (!enough) continue;
        qsort(out, (size_t)n, sizeof *out, ew_candidate_order);
        double sum = 0;
        int count = 0;
        while (count < n && (count == 0 || (sum < (double)top_p * total && out[count].value >= min_p))) sum += (double)out[count++].value;
        return count;
    }
}

static float ew_slope(const ew_sampling *s, int row) { return EW_LOG2E / (s->temperature[row] > 1e-37f ? s->temperature[row] : 1e-37f); } /* stays finite */

/* Draws one of `count` candidates, whose values are weights, by the row's random number. */
static int ew_draw_among(const ew_sampling *s, int row, const ew_candidate *candidates, int count) {
    const double uniform = ew_philox(s->seeds[row], (uint64_t)s->positions[row]);
    double kept = 0, passed = 0;
    for (int i = 0; i < count; i++) kept += (double)candidates[i].value;
    for (int i = 0; i < count; i++) {
        passed += (double)candidates[i].value;
        if (passed > uniform * kept) return candidates[i].id;
    }
    return candidates[count - 1].id;
}

/* Draws from the row's top-k logits, sorted; they become weights here. `high` is the highest of them. */
static int ew_draw_top(const ew_sampling *s, int row, float high, ew_top_list *t) {
    const float slope = ew_slope(s, row);
    double kept = 0, sum = 0;
    int n = 0, count = 0;
    for (; n < t->count; n++) {
        const float weight = vf_exp2(vf_set1((t->items[n].value - high) * slope))[0];
        if (!(weight > 0)) break;
        t->items[n].value = weight;
        kept += (double)weight;
    }
    while (count < n && (count == 0 || (sum < (double)s->top_p[row] * kept && t->items[count].value >= s->min_p[row]))) sum += (double)t->items[count++].value;
    return count ? ew_draw_among(s, row, t->items, count) : -1;
}

static int ew_draw(const ew_sampling *s, int row, int vocab, ew_sample_scratch *z) {
    float *x = z->adjusted;
    const float high = ew_highest(x, vocab);
    if (!(high - high == 0)) return -1;
    if (s->temperature[row] <= 0) return ew_argmax(x, vocab);
    if (s->top_k[row] > 0 && s->top_k[row] < vocab) {
        ew_top_list t = {s->top_k[row], 0, z->candidates};
        ew_top(x, vocab, &t);
        return ew_draw_top(s, row, high, &t);
    }
    const float slope = ew_slope(s, row);
    double total = 0;
    for (int i = 0; i < vocab; i += EW_LANES) {
        float part[EW_LANES] EW_ALIGNED;
        const int m = vocab - i < EW_LANES ? vocab - i : EW_LANES;
        for (int j = 0; j < EW_LANES; j++) part[j] = j < m ? x[i + j] : -__builtin_inff();
        vf w = vf_exp2((vf_load(part) - high) * slope);
        vf_store(part, w);
        memcpy(x + i, part, (size_t)m * 4);
        total += (double)vf_sum(w);
    }
    if (!(total > 0)) return -1;
    if (s->top_k[row] > 0 || s->top_p[row] < 1 || s->min_p[row] > 0) {
        const int count = ew_filter(x, vocab, s->top_p[row], s->min_p[row], total, z->candidates);
        return ew_draw_among(s, row, z->candidates, count);
    }
    const double uniform = ew_philox(s->seeds[row], (uint64_t)s->positions[row]);
    double passed = 0;
    int last = 0;
    for (int i = 0; i < vocab; i++) {
        if (!(x[i] > 0)) continue;
        last = i;
        passed += (double)x[i];
        if (passed > uniform * total) return i;
    }
    return last;
}

/* Whether nothing but a row's own logits is needed, as they come from the head. */
EW_INLINE int ew_is_plain(const ew_sampling *s, int row) {
    return s->num_logprobs[row] < 0 && !s->masks && s->history_starts[row] == s->history_starts[row + 1] && s->bias_starts[row] == s->bias_starts[row + 1];
}

/* How many of the highest plain logits decide a row: 0 for a greedy one, -1 if they do not. */
EW_INLINE int ew_decided_by(const ew_sampling *s, int row, int vocab) {
    if (!ew_is_plain(s, row)) return -1;
    if (s->temperature[row] <= 0) return 0;
    return s->top_k[row] > 0 && s->top_k[row] < vocab ? s->top_k[row] : -1;
}

static void ew_sample_row(const ew_sampling *s, int row, const float *logits, int vocab, ew_result *result, ew_sample_scratch *z) {
    const int n = s->num_logprobs[row] < vocab ? s->num_logprobs[row] : vocab;
    ew_adjust(s, row, logits, vocab, z);
    const int token = ew_draw(s, row, vocab, z);
    result->tokens[row] = token;
    if (result->logprobs) result->logprobs[row] = __builtin_nanf("");
    if (n < 0 || token < 0) return;
    const double sum = ew_log_sum_exp(logits, vocab, ew_highest(logits, vocab));
    result->logprobs[row] = (float)((double)logits[token] - sum);
    ew_top_list t = {n, 0, z->candidates};
    if (n) ew_top(logits, vocab, &t);
    for (int i = 0; i < t.count; i++) {
        result->top_ids[(size_t)row * s->top_logprobs + i] = z->candidates[i].id;
        result->top_logprobs[(size_t)row * s->top_logprobs + i] = (float)((double)z->candidates[i].value - sum);
    }
}

#endif
