/* Buffers of one thread for the functions of attention. */
#ifndef ATTENTUNE_ARENA
#define ATTENTUNE_ARENA

#include "vectors.h"

/* Memory of one thread, zeroed, handed out in whole cache lines. Used in two passes: the first counts the bytes
 * (`memory` is NULL), then `arena_allocate` gets them and the second pass returns the pointers. */
typedef struct { char *memory; int64_t used; } arena_t;

static inline void *arena_take(arena_t *tables, int64_t bytes) {
    void *context = tables->memory ? tables->memory + tables->used : NULL;
    tables->used += padded(bytes, 64);
    return context;
}

static inline int arena_allocate(arena_t *tables) {
    int64_t bytes = tables->used;
    *tables = (arena_t){aligned_alloc(64, bytes), 0};
    if (tables->memory) memset(tables->memory, 0, bytes);
    return tables->memory != NULL;
}

#endif
