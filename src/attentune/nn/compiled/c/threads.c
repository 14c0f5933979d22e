#include "threads.h"

#include <string.h>

typedef void (*parallel_fn)(void (*)(void *), void *, unsigned, unsigned);
typedef int (*number_fn)(void);
static parallel_fn run_parallel;
static number_fn thread_number, thread_count;

/* GOMP_parallel, omp_get_thread_num and omp_get_num_threads. */
void attentune_threads(void *parallel, void *number, void *count) {
    run_parallel = (parallel_fn)parallel;
    thread_number = (number_fn)number;
    thread_count = (number_fn)count;
}

share_t attentune_share(int64_t count) {
    int64_t number = thread_number(), threads = thread_count();
    return (share_t){count * number / threads, count * (number + 1) / threads, (int)number};
}

void attentune_in_parallel(void (*body)(void *), void *given, int threads) {
    run_parallel(body, given, (unsigned)threads, 0);
}

void attentune_add_up(const float *parts, int threads, int64_t columns, float *out) {
    memcpy(out, parts, 4 * columns);
    for (int number = 1; number < threads; number++)
        for (int64_t j = 0; j < columns; j++) out[j] += parts[number * columns + j];
}
