#include "flow.h"

#include <math.h>

#include "lanes.h"
#include "store.h"

enum { LEVELS = 8, LONGEST = 1000 };

/* The first 1,000 characters of a text in UTF-8: what a last_error may have. */
static Text cut(Text text) {
    size_t count = 0;
    for (size_t i = 0; i < text.len; i++) {
        unsigned char byte = (unsigned char)text.at[i];
        if (byte >= 128 && byte <= 191) continue;
        if (++count > LONGEST) return (Text){text.at, i};
    }
    return text;
}

static Child child_of_row(Call *c, Str *id, Str *row, Str **group) {
    static const int FIELDS[] = {W_DEDUP, W_PARENT, W_PARENT_QUEUE, W_PARENT_POLICY, W_GROUP};
    Str *values[5];
    row_read(c, row, FIELDS, values, 5);
    *group = values[4];
    return (Child){id, values[0], values[1], values[2], values[3]};
}

Child read_child(Call *c, Str *id) {
    Str *group;
    return child_of_row(c, id, row_key(c, id), &group);
}

static Str *dedup_key(Call *c, const Str *dedup) {
    return key_of(c, "de:", text_of(dedup), "");
}

static bool same_queue(const Child *child) {
    return !child->parent_queue || text_of(child->parent_queue).len == 0;
}

/* The keys of one parent; answers it as the child that it may be itself. */
static Child touch_parent(Call *c, Str *parent) {
    Str *row = row_key(c, parent), *group;
    Child up = child_of_row(c, parent, row, &group);
    touch(c, part_key(c, row, "dependencies"), TYPE_STRING);
    touch(c, part_key(c, row, "processed"), TYPE_HASH);
    touch(c, part_key(c, row, "failed"), TYPE_HASH);
    touch(c, part_key(c, row, "unsuccessful"), TYPE_HASH);
    touch(c, queue_key(c, "pending"), TYPE_ZSET);
    touch(c, queue_key(c, "dead"), TYPE_ZSET);
    touch(c, queue_key(c, "metrics:failed"), TYPE_HASH);
    touch(c, queue_key(c, "ready"), TYPE_LIST);
    if (group) touch_lane(c, group);
    if (up.dedup) touch(c, dedup_key(c, up.dedup), TYPE_STRING);
    return up;
}

void touch_ended(Call *c, const Child *child) {
    if (child->dedup) touch(c, dedup_key(c, child->dedup), TYPE_STRING);
    Child level = *child;
    for (int i = 0; i < LEVELS && level.parent; i++) {
        if (!same_queue(&level)) {
            touch(c, queue_key(c, "flow:outbox"), TYPE_LIST);
            return;
        }
        level = touch_parent(c, level.parent);
    }
}

void release_dedup(Call *c, const Child *child) {
    if (!child->dedup) return;
    Str *key = dedup_key(c, child->dedup), *owner = string_read(c, key);
    if (owner && same(text_of(owner), text_of(child->id))) erase(c, key);
}

static bool awaits_children(Call *c, Str *row) {
    return is(row_field(c, row, word[W_STATE]), "awaiting_children");
}

/* HSETNX. */
static bool field_add_new(Call *c, Str *row, Str *field, Str *value) {
    if (row_field(c, row, field)) return false;
    field_write(c, row, field, value);
    return true;
}

/* One decrement per child; at zero the parent is released, only from awaiting_children. A count that is none is over. */
static void count_down(Call *c, Str *parent, Str *row) {
    Str *dependencies = part_key(c, row, "dependencies");
    double out;
    out = count_read(c, dependencies, &out) ? out - 1 : 0;
    string_write(c, dependencies, number_str(c, nearbyint(out)), 0);
    if (out > 0 || !awaits_children(c, row)) return;
    Str *group = row_field(c, row, word[W_GROUP]);
    field_write(c, row, word[W_STATE], word[W_PENDING]);
    zset_add(c, group ? lane_key(c, group) : queue_key(c, "pending"), 0, parent);
    if (group) {
        offer(c, group, false);
    } else {
        wake_flat(c, 1);
    }
}

/* Whether a row waits for children, or did: a parent that is gone is not made anew, and a job that came later under its id
 * has no children. */
static bool is_parent(Call *c, Str *row) {
    bool both = VM_KeyExists(c->ctx, row) && VM_KeyExists(c->ctx, part_key(c, row, "dependencies"));
    return both || awaits_children(c, row);
}

/* The parent's side of a child that is done. */
static void child_done(Call *c, const Child *child, Str *result) {
    Str *row = row_key(c, child->parent);
    if (!is_parent(c, row)) return;
    if (!field_add_new(c, part_key(c, row, "processed"), child->id, result)) return;
    /* It counted already when it died and its death was ignored. */
    if (!row_field(c, part_key(c, row, "unsuccessful"), child->id)) count_down(c, child->parent, row);
}

static void send(Call *c, const Text *words, size_t n) {
    size_t len = n - 1, at = 0;
    for (size_t i = 0; i < n; i++) len += words[i].len;
    char *entry = pool(c, len, 1);
    for (size_t i = 0; i < n; i++) {
        if (i) entry[at++] = '\0';
        if (words[i].len) memcpy(entry + at, words[i].at, words[i].len);
        at += words[i].len;
    }
    list_push(c, queue_key(c, "flow:outbox"), LIST_TAIL, VM_CreateString(c->ctx, entry, len), 1);
}

void completed(Call *c, const Child *child, Str *result) {
    release_dedup(c, child);
    if (!child->parent) return;
    if (!result) result = child->id;
    if (same_queue(child)) {
        child_done(c, child, result);
        return;
    }
    Text words[] = {text_of(child->parent_queue), text_of(child->parent), text_of(child->id), text_of(result)};
    send(c, words, 4);
}

static Str *reason_of_parent(Call *c, const Child *child, Str *reason) {
    Text parts[] = {TEXT("child "), text_of(child->id), TEXT(" died: "), text_of(reason)};
    return str_of(c, cut(text_of(joined(c, parts, 4))));
}

/* The parent's side of a child that is dead: by policy it goes on without it (`id`), or fails with it. Answers why it is
 * dead now itself, NULL where it is not. */
static Str *child_dead(Call *c, const Child *child, Str *reason, bool ignored) {
    Str *row = row_key(c, child->parent);
    if (!is_parent(c, row)) return NULL;
    bool done = row_field(c, part_key(c, row, "processed"), child->id);
    if (ignored) {
        bool first = field_add_new(c, part_key(c, row, "unsuccessful"), child->id, reason);
        if (first && !done) count_down(c, child->parent, row);
        return NULL;
    }
    field_add_new(c, part_key(c, row, "failed"), child->id, reason);
    /* Of a child that has completed all the same (its death is told again, or told late) nobody dies. */
    if (done || !awaits_children(c, row)) return NULL;
    Str *said = reason_of_parent(c, child, reason);
    Pair dead[] = {{W_STATE, word[W_DEAD]}, {W_LAST_ERROR, said}};
    row_write(c, row, dead, 2);
    zset_add(c, queue_key(c, "dead"), 0, child->parent);
    field_add(c, queue_key(c, "metrics:failed"), word[W_COUNT], 1);
    return said;
}

static void send_death(Call *c, const Child *child, Str *reason, bool ignored) {
    Text words[] = {TEXT(""), TEXT("fail"), text_of(child->parent_queue), text_of(child->parent),
                    text_of(child->id), ignored ? TEXT("id") : TEXT("fp"), text_of(reason)};
    send(c, words, 7);
}

void died(Call *c, const Child *child, Str *reason) {
    Child level = *child;
    while (reason) {
        release_dedup(c, &level);
        if (!level.parent) return;
        bool ignored = is(level.policy, "id");
        if (!same_queue(&level)) {
            send_death(c, &level, reason, ignored);
            return;
        }
        /* A parent that dies with its child dies as a child of its own parent: every level is dead before the next, so a
         * tree that bites its tail ends too. */
        reason = child_dead(c, &level, reason, ignored);
        if (reason) level = read_child(c, level.parent);
    }
}
