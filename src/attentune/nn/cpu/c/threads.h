/* Work divided among the threads of the OpenMP that PyTorch has loaded: a second set would fight with it for the cores.
 *
 * Rows (or heads) go to threads in fixed shares, so the same number of threads gives the same bits.
 */
#ifndef ATTENTUNE_THREADS
#define ATTENTUNE_THREADS

#include <stdint.h>

typedef struct { int64_t begin, end; int number; } share_t;

/* This thread's share; of fewer threads than were asked for, where OpenMP gave fewer. */
share_t attentune_share(int64_t count);

void attentune_in_parallel(void (*body)(void *), void *given, int threads);

/* The threads' own sums, (threads, columns), added in order; those of a thread that never ran are zero. */
void attentune_add_up(const float *parts, int threads, int64_t columns, float *out);

#endif
