/* How threads wait for each other: they spin, then yield, then sleep; idle threads cost nothing. */
#ifndef EW_POOL_H
#define EW_POOL_H

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <time.h>
#include "isa.h"

#define EW_LINE 128 /* two cache lines: neighbours are fetched in pairs */
#define EW_SPINS 400
#define EW_YIELDS 20000
#define EW_LINGER 0.0003 /* seconds */

typedef struct { _Atomic uint32_t value; char pad[EW_LINE - 4]; } ew_flag;

static double ew_now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

EW_INLINE void ew_relax(uint32_t *tries) {
    if (++*tries < EW_SPINS) ew_pause();
    else if (*tries < EW_YIELDS) sched_yield();
    else {
        struct timespec nap = {0, 50000};
        nanosleep(&nap, 0);
    }
}

/* A counter that one thread waits on and another raises: spins a while, then sleeps on a condition. */
typedef struct {
    _Atomic uint32_t value;
    _Atomic int32_t sleepers;
    pthread_mutex_t lock;
    pthread_cond_t changed;
} ew_signal;

static void ew_signal_init(ew_signal *s) {
    atomic_init(&s->value, 0);
    atomic_init(&s->sleepers, 0);
    pthread_mutex_init(&s->lock, 0);
    pthread_cond_init(&s->changed, 0);
}
static void ew_signal_free(ew_signal *s) {
    pthread_mutex_destroy(&s->lock);
    pthread_cond_destroy(&s->changed);
}
static void ew_signal_raise(ew_signal *s) {
    atomic_fetch_add(&s->value, 1);
    if (atomic_load(&s->sleepers)) {
        pthread_mutex_lock(&s->lock);
        pthread_cond_broadcast(&s->changed);
        pthread_mutex_unlock(&s->lock);
    }
}
/* Returns once the counter has reached `target`. Before it sleeps it spins, then lets others run for about the
 * time that a host takes between two steps: to be woken costs more than that. */
static void ew_signal_wait(ew_signal *s, uint32_t target, int spins) {
    for (int i = 0; i < spins; i++) {
        if ((int32_t)(atomic_load_explicit(&s->value, memory_order_acquire) - target) >= 0) return;
        ew_pause();
    }
    for (const double end = ew_now() + EW_LINGER; ew_now() < end;) {
        if ((int32_t)(atomic_load_explicit(&s->value, memory_order_acquire) - target) >= 0) return;
        for (int i = 0; i < 16; i++) ew_pause();
    }
    if ((int32_t)(atomic_load(&s->value) - target) >= 0) return;
    pthread_mutex_lock(&s->lock);
    atomic_fetch_add(&s->sleepers, 1);
    while ((int32_t)(atomic_load(&s->value) - target) < 0) pthread_cond_wait(&s->changed, &s->lock);
    atomic_fetch_sub(&s->sleepers, 1);
    pthread_mutex_unlock(&s->lock);
}

#endif
