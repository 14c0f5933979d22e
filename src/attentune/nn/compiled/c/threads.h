/* Parallel loops on the OpenMP runtime that PyTorch has loaded; a second runtime would compete with it for the cores.
 *
 * Rows (or heads) are divided among threads in fixed shares, so results are reproducible for the same number of threads.
 */
#ifndef ATTENTUNE_THREADS
#define ATTENTUNE_THREADS

#include <stdint.h>

typedef struct { int64_t begin, end; int number; } share_t;

/* The share of the calling thread, by the number of threads that OpenMP has really started. */
share_t attentune_share(int64_t count);

void attentune_in_parallel(void (*body)(void *), void *given, int threads);

/* Add the threads' partial sums (threads, columns) in a fixed order; threads that did not run have zeros. */
void attentune_add_up(const float *parts, int threads, int64_t columns, float *out);

#endif
