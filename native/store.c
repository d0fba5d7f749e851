#include "store.h"

#include <math.h>

/* ---- the reading phase ---- */

static void note_derived(Call *c, Str *name) {
    if (c->cluster && !c->passed) list_add(c, &c->derived, name);
}

Key *open_read(Call *c, Str *name, int type) {
    note_derived(c, name);
    Key *key = VM_OpenKey(c->ctx, name, KEY_READ);
    if (!key) return NULL;
    int found = VM_KeyType(key);
    if (found == type) return key;
    if (found != TYPE_NONE) c->wrong_type = true;
    VM_CloseKey(key);
    return NULL;
}

Key *open_both(Call *c, Str *name, int type) {
    note_derived(c, name);
    Key *key = VM_OpenKey(c->ctx, name, KEY_READ | KEY_WRITE);
    int found = VM_KeyType(key);
    if (found != type && found != TYPE_NONE) c->wrong_type = true;
    return key;
}

void touch(Call *c, Str *name, int type) {
    Key *key = open_read(c, name, type);
    if (key) VM_CloseKey(key);
}

bool exists(Call *c, Str *name) {
    note_derived(c, name);
    return VM_KeyExists(c->ctx, name);
}

RowReader row_reader(Key *open) {
    bool is_row = open && VM_KeyType(open) == TYPE_HASH;
    return (RowReader){open, is_row ? VM_ValueLength(open) : 0};
}

Str *row_next(RowReader *r, int field) {
    Str *value = NULL;
    if (!r->left) return NULL;
    VM_HashGet(r->open, 0, word[field], &value, NULL);
    if (value) r->left--;
    return value;
}

void row_skip(RowReader *r, int field) {
    int found = 0;
    if (r->left) VM_HashGet(r->open, HASH_EXISTS, word[field], &found, NULL);
    if (found) r->left--;
}

void row_read(Call *c, Str *row, const int *fields, Str **values, size_t n) {
    for (size_t i = 0; i < n; i++) values[i] = NULL;
    Key *key = open_read(c, row, TYPE_HASH);
    if (!key) return;
    for (size_t i = 0; i < n; i++) VM_HashGet(key, 0, word[fields[i]], &values[i], NULL);
    VM_CloseKey(key);
}

Str *row_field(Call *c, Str *row, Str *field) {
    Str *value = NULL;
    Key *key = open_read(c, row, TYPE_HASH);
    if (!key) return NULL;
    VM_HashGet(key, 0, field, &value, NULL);
    VM_CloseKey(key);
    return value;
}

size_t length_of(Call *c, Str *name, int type) {
    Key *key = open_read(c, name, type);
    if (!key) return 0;
    size_t length = VM_ValueLength(key);
    VM_CloseKey(key);
    return length;
}

bool zset_score(Call *c, Str *name, Str *id, double *score) {
    Key *key = open_read(c, name, TYPE_ZSET);
    if (!key) return false;
    bool found = VM_ZsetScore(key, id, score) == API_OK;
    VM_CloseKey(key);
    return found;
}

void zset_until(Call *c, Str *name, double max, size_t most, List *ids) {
    Key *key = open_read(c, name, TYPE_ZSET);
    if (!key) return;
    VM_ZsetFirstInScoreRange(key, -INFINITY, max, 0, 0);
    while (ids->n < most && !VM_ZsetRangeEndReached(key)) {
        list_add(c, ids, VM_ZsetRangeCurrentElement(key, NULL));
        VM_ZsetRangeNext(key);
    }
    VM_ZsetRangeStop(key);
    VM_CloseKey(key);
}

Str *string_read(Call *c, Str *name) {
    Key *key = open_read(c, name, TYPE_STRING);
    if (!key) return NULL;
    size_t len;
    const char *at = VM_StringDMA(key, &len, KEY_READ);
    Str *value = VM_CreateString(c->ctx, at, len);
    VM_CloseKey(key);
    return value;
}

bool count_read(Call *c, Str *name, double *value) {
    *value = number_of(string_read(c, name), NAN);
    return !isnan(*value);
}

bool set_has(Call *c, Str *name, Str *member) {
    /* The API has no sets; most queues have no such key. */
    if (!length_of(c, name, TYPE_SET)) return false;
    Reply *reply = VM_Call(c->ctx, "SISMEMBER", "ss", name, member);
    return reply && VM_CallReplyInteger(reply) == 1;
}

/* ---- the writing phase ---- */

static Key *open_write(Call *c, Str *name) {
    return VM_OpenKey(c->ctx, name, KEY_READ | KEY_WRITE);
}

static void close_written(Call *c, Key *key, Str *name, int type, const char *event) {
    VM_CloseKey(key);
    VM_NotifyKeyspaceEvent(c->ctx, type, event, name);
}

static Str **vector_of(Call *c, size_t n) {
    return pool(c, n, sizeof(Str *));
}

void zset_add(Call *c, Str *name, double score, Str *id) {
    List one = {&id, 1, 1};
    zset_add_all(c, name, score, &one);
}

void zset_add_all(Call *c, Str *name, double score, const List *ids) {
    if (!ids->n) return;
    Str **words = vector_of(c, 2 * ids->n);
    Str *text = score == 0 ? word[W_ZERO] : number_str(c, score);
    Key *key = open_write(c, name);
    /* From the end: ids come in their order, and in a small set the place of one before its like is found first. */
    for (size_t i = ids->n; i-- > 0;) {
        VM_ZsetAdd(key, score, ids->at[i], NULL);
        words[2 * i] = text;
        words[2 * i + 1] = ids->at[i];
    }
    close_written(c, key, name, NOTIFY_ZSET, "zadd");
    VM_Replicate(c->ctx, "ZADD", "sv", name, words, 2 * ids->n);
}

void zset_add_scored(Call *c, Str *name, const double *scores, const List *ids) {
    if (!ids->n) return;
    Str **words = vector_of(c, 2 * ids->n);
    Key *key = open_write(c, name);
    for (size_t i = 0; i < ids->n; i++) {
        VM_ZsetAdd(key, scores[i], ids->at[i], NULL);
        words[2 * i] = number_str(c, scores[i]);
        words[2 * i + 1] = ids->at[i];
    }
    close_written(c, key, name, NOTIFY_ZSET, "zadd");
    VM_Replicate(c->ctx, "ZADD", "sv", name, words, 2 * ids->n);
}

void zset_rescore(Call *c, Str *name, double score, Str *id) {
    int flags = ZADD_XX;
    Key *key = open_write(c, name);
    VM_ZsetAdd(key, score, id, &flags);
    close_written(c, key, name, NOTIFY_ZSET, "zadd");
    VM_Replicate(c->ctx, "ZADD", "scss", name, "XX", number_str(c, score), id);
}

void zset_raise(Call *c, Str *name, double score, Str *id) {
    int flags = ZADD_XX | ZADD_GT;
    Key *key = open_write(c, name);
    VM_ZsetAdd(key, score, id, &flags);
    close_written(c, key, name, NOTIFY_ZSET, "zadd");
    VM_Replicate(c->ctx, "ZADD", "sccss", name, "XX", "GT", number_str(c, score), id);
}

bool zset_remove(Call *c, Str *name, Str *id) {
    List one = {&id, 1, 1};
    return zset_remove_all(c, name, &one) == 1;
}

size_t zset_remove_all(Call *c, Str *name, const List *ids) {
    if (!ids->n) return 0;
    size_t removed = 0;
    Key *key = open_write(c, name);
    for (size_t i = 0; i < ids->n; i++) {
        int deleted = 0;
        /* An emptied set is gone, and the handle says so; ZsetRem takes that as an empty set. */
        VM_ZsetRem(key, ids->at[i], &deleted);
        removed += (size_t)deleted;
    }
    if (!removed) {
        VM_CloseKey(key);
        return 0;
    }
    close_written(c, key, name, NOTIFY_ZSET, "zrem");
    VM_Replicate(c->ctx, "ZREM", "sv", name, ids->at, ids->n);
    return removed;
}

enum { FIELDS_PER_CALL = 4 };

/* Fields and values in turn; the API ends at a NULL. */
void fields_set(Key *key, Str **words, size_t n) {
    for (size_t i = 0; i < n; i += 2 * FIELDS_PER_CALL) {
        Str *w[2 * FIELDS_PER_CALL] = {NULL};
        for (size_t j = 0; j < 2 * FIELDS_PER_CALL && i + j < n; j++) w[j] = words[i + j];
        VM_HashSet(key, 0, w[0], w[1], w[2], w[3], w[4], w[5], w[6], w[7], NULL);
    }
}

void row_write(Call *c, Str *row, const Pair *pairs, size_t n) {
    Str **words = vector_of(c, 2 * n);
    for (size_t i = 0; i < n; i++) {
        words[2 * i] = word[pairs[i].field];
        words[2 * i + 1] = pairs[i].value;
    }
    Key *key = open_write(c, row);
    fields_set(key, words, 2 * n);
    close_written(c, key, row, NOTIFY_HASH, "hset");
    VM_Replicate(c->ctx, "HSET", "sv", row, words, 2 * n);
}

void row_clear(Call *c, Str *row, const int *fields, size_t n) {
    Str **words = vector_of(c, n);
    int cleared = 0;
    Key *key = open_write(c, row);
    for (size_t i = 0; i < n; i++) {
        words[i] = word[fields[i]];
        if (VM_KeyType(key) == TYPE_HASH) cleared += VM_HashSet(key, 0, words[i], FIELD_DELETE, NULL);
    }
    if (!cleared) {
        VM_CloseKey(key);
        return;
    }
    close_written(c, key, row, NOTIFY_HASH, "hdel");
    VM_Replicate(c->ctx, "HDEL", "sv", row, words, n);
}

void field_write(Call *c, Str *row, Str *field, Str *value) {
    Key *key = open_write(c, row);
    VM_HashSet(key, 0, field, value, NULL);
    close_written(c, key, row, NOTIFY_HASH, "hset");
    VM_Replicate(c->ctx, "HSET", "sss", row, field, value);
}

void fields_write(Call *c, Str *row, const List *words) {
    if (!words->n) return;
    Key *key = open_write(c, row);
    fields_set(key, words->at, words->n);
    close_written(c, key, row, NOTIFY_HASH, "hset");
    VM_Replicate(c->ctx, "HSET", "sv", row, words->at, words->n);
}

void field_clear(Call *c, Str *row, Str *field) {
    Key *key = open_write(c, row);
    int cleared = VM_KeyType(key) == TYPE_HASH ? VM_HashSet(key, 0, field, FIELD_DELETE, NULL) : 0;
    if (!cleared) {
        VM_CloseKey(key);
        return;
    }
    close_written(c, key, row, NOTIFY_HASH, "hdel");
    VM_Replicate(c->ctx, "HDEL", "ss", row, field);
}

double field_add(Call *c, Str *row, Str *field, double by) {
    double value = number_of(row_field(c, row, field), 0) + by;
    field_write(c, row, field, number_str(c, value));
    return value;
}

void list_push(Call *c, Str *name, int where, Str *value, size_t times) {
    if (!times) return;
    Str **words = vector_of(c, times);
    Key *key = open_write(c, name);
    for (size_t i = 0; i < times; i++) {
        VM_ListPush(key, where, value);
        words[i] = value;
    }
    close_written(c, key, name, NOTIFY_LIST, where == LIST_HEAD ? "lpush" : "rpush");
    VM_Replicate(c->ctx, where == LIST_HEAD ? "LPUSH" : "RPUSH", "sv", name, words, times);
}

/* Keeps the first so many. */
void list_keep(Call *c, Str *name, size_t first) {
    Key *key = open_write(c, name);
    for (size_t length = VM_ValueLength(key); length > first; length--) VM_FreeString(c->ctx, VM_ListPop(key, LIST_TAIL));
    close_written(c, key, name, NOTIFY_LIST, "ltrim");
    VM_Replicate(c->ctx, "LTRIM", "scl", name, "0", (long long)first - 1);
}

void string_write(Call *c, Str *name, Str *value, long long expire_at_ms) {
    Key *key = open_write(c, name);
    VM_StringSet(key, value);
    if (expire_at_ms) VM_SetAbsExpire(key, expire_at_ms);
    close_written(c, key, name, NOTIFY_STRING, "set");
    if (expire_at_ms) {
        VM_Replicate(c->ctx, "SET", "sscl", name, value, "PXAT", expire_at_ms);
    } else {
        VM_Replicate(c->ctx, "SET", "ss", name, value);
    }
}

void expire_at(Call *c, Str *name, long long at_ms) {
    Key *key = open_write(c, name);
    VM_SetAbsExpire(key, at_ms);
    close_written(c, key, name, NOTIFY_GENERIC, "expire");
    VM_Replicate(c->ctx, "PEXPIREAT", "sl", name, at_ms);
}

bool erase(Call *c, Str *name) {
    if (!VM_KeyExists(c->ctx, name)) return false;
    Key *key = open_write(c, name);
    VM_UnlinkKey(key);
    close_written(c, key, name, NOTIFY_GENERIC, "del");
    VM_Replicate(c->ctx, "UNLINK", "s", name);
    return true;
}
