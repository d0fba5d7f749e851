/* Texts to values of one call, in the call's pool. */
#ifndef EMQ_TABLE_H
#define EMQ_TABLE_H

#include "common.h"

typedef struct {
    const Str *key;
    void *value;
} Slot;

typedef struct {
    Slot *slots;
    size_t n, room;
} Table;

/* Where the value of a text is kept; NULL stands there at first. Valid until the next call of it. */
void **table_at(Call *c, Table *table, const Str *key);

/* Marks a text; whether it was marked before. */
bool table_mark(Call *c, Table *table, const Str *key);

#endif
