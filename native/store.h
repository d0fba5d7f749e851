/* Reading and writing keys.
 *
 * Reads answer "absent" for a key of a wrong type and note it in the call (may_write refuses then). Every write changes the
 * key, sends the same effect to replicas and the append-only file, and notifies as the command of that name would. */
#ifndef EMQ_STORE_H
#define EMQ_STORE_H

#include "common.h"

/* ---- the reading phase ---- */

/* Looks at a key that will be read or written: its type, and that it is here. NULL where it is absent. `touch` is for keys
 * that are only written. */
Key *open_read(Call *c, Str *name, int type);
void touch(Call *c, Str *name, int type);
/* The same for a key that will be written through this very handle; never NULL, so its type tells whether it is there. No
 * other handle may add or delete the key meanwhile. */
Key *open_both(Call *c, Str *name, int type);
bool exists(Call *c, Str *name);

/* The fields of a row, by their words; NULL where there is none. */
/* Fields of an open row, the likely ones first: it stops where all that the row has are found. */
typedef struct {
    Key *open;
    size_t left;
} RowReader;
RowReader row_reader(Key *open);
Str *row_next(RowReader *r, int field);
/* Passes over a field whose value is not needed. */
void row_skip(RowReader *r, int field);

void row_read(Call *c, Str *row, const int *fields, Str **values, size_t n);
Str *row_field(Call *c, Str *row, Str *field);
size_t length_of(Call *c, Str *name, int type);

bool zset_score(Call *c, Str *name, Str *id, double *score);
/* The members scored at or below `max`, at most `most` of them, lowest first. */
void zset_until(Call *c, Str *name, double max, size_t most, List *ids);
/* The number in a string key; false where there is none. */
bool count_read(Call *c, Str *name, double *value);
Str *string_read(Call *c, Str *name);
bool set_has(Call *c, Str *name, Str *member);

/* ---- the writing phase ---- */

void zset_add(Call *c, Str *name, double score, Str *id);
/* XX: never adds; zset_raise XX GT: never lowers either. */
void zset_rescore(Call *c, Str *name, double score, Str *id);
void zset_raise(Call *c, Str *name, double score, Str *id);
bool zset_remove(Call *c, Str *name, Str *id);
/* All at one score; nothing for none. */
void zset_add_all(Call *c, Str *name, double score, const List *ids);
/* Each at its own. */
void zset_add_scored(Call *c, Str *name, const double *scores, const List *ids);
/* Answers how many there were. */
size_t zset_remove_all(Call *c, Str *name, const List *ids);

/* Pairs of a word's number and a value; FIELD_DELETE has no place here. */
typedef struct {
    int field;
    Str *value;
} Pair;
/* Through an open handle, told to nobody. */
void fields_set(Key *key, Str **words, size_t n);
void row_write(Call *c, Str *row, const Pair *pairs, size_t n);
void row_clear(Call *c, Str *row, const int *fields, size_t n);
void field_write(Call *c, Str *row, Str *field, Str *value);
/* Fields and values in turn; nothing for none. */
void fields_write(Call *c, Str *row, const List *words);
void field_clear(Call *c, Str *row, Str *field);
/* HINCRBY; answers the new value. */
double field_add(Call *c, Str *row, Str *field, double by);

void list_push(Call *c, Str *name, int where, Str *value, size_t times);
void list_keep(Call *c, Str *name, size_t first);
void string_write(Call *c, Str *name, Str *value, long long expire_at_ms);
void expire_at(Call *c, Str *name, long long at_ms);
bool erase(Call *c, Str *name);

#endif
