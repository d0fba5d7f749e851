#include "lanes.h"

#include <math.h>

#include "store.h"

enum { TOKENS = 64, READY_MS = 60000 };

Str *lane_key(Call *c, const Str *group) {
    return key_of(c, "g:", text_of(group), ":pending");
}

void touch_lane(Call *c, const Str *group) {
    touch(c, lane_key(c, group), TYPE_ZSET);
    touch(c, queue_key(c, "paused"), TYPE_SET);
    touch(c, queue_key(c, "glimit"), TYPE_HASH);
    touch(c, queue_key(c, "gactive"), TYPE_HASH);
    touch(c, queue_key(c, "ring"), TYPE_LIST);
    touch(c, queue_key(c, "wake"), TYPE_LIST);
}

/* Answers how many stand there then. */
static size_t push_tokens(Call *c, Str *key, size_t count) {
    if (count > TOKENS) count = TOKENS;
    list_push(c, key, LIST_HEAD, word[W_ONE], count);
    size_t length = length_of(c, key, TYPE_LIST);
    if (length > TOKENS) list_keep(c, key, TOKENS);
    return length;
}

void wake_flat(Call *c, size_t count) {
    if (!count) return;
    Str *ready = queue_key(c, "ready");
    if (push_tokens(c, ready, count) <= count) expire_at(c, ready, c->now + READY_MS);
}

static bool on_ring(Call *c, Str *ring, Str *group) {
    if (!VM_KeyExists(c->ctx, ring)) return false;
    Reply *reply = VM_Call(c->ctx, "LPOS", "ss", ring, group);
    return reply && VM_CallReplyType(reply) == REPLY_INTEGER;
}

void offer(Call *c, Str *group, bool quiet) {
    if (!length_of(c, lane_key(c, group), TYPE_ZSET)) return;
    if (set_has(c, queue_key(c, "paused"), group)) return;
    Str *limit = row_field(c, queue_key(c, "glimit"), group);
    if (limit && number_of(row_field(c, queue_key(c, "gactive"), group), 0) >= number_of(limit, HUGE_VAL)) return;
    Str *ring = queue_key(c, "ring");
    if (!on_ring(c, ring, group)) {
        list_push(c, ring, LIST_TAIL, group, 1);
    } else if (quiet) {
        return;
    }
    push_tokens(c, queue_key(c, "wake"), 1);
}

void free_slots(Call *c, Str *group, size_t count) {
    Str *gactive = queue_key(c, "gactive");
    double left = number_of(row_field(c, gactive, group), 0) - (double)count;
    if (left > 0) {
        field_write(c, gactive, group, number_str(c, left));
    } else {
        field_clear(c, gactive, group);
    }
}

void leave_ring(Call *c, Str *group) {
    Str *ring = queue_key(c, "ring");
    if (on_ring(c, ring, group)) VM_Call(c->ctx, "LREM", "!scs", ring, "0", group);
}

void leave_lane(Call *c, Str *group, Str *id) {
    Str *lane = lane_key(c, group);
    if (zset_remove(c, lane, id) && !length_of(c, lane, TYPE_ZSET)) leave_ring(c, group);
}
