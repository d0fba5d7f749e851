#include "ending.h"

#include "lanes.h"
#include "store.h"

bool touch_ending(Call *c, Str *id, Str *group) {
    static const char *const SETS[] = {"active", "pending", "schedule", "dead"};
    for (size_t i = 0; i < 4; i++) touch(c, queue_key(c, SETS[i]), TYPE_ZSET);
    touch(c, queue_key(c, "ready"), TYPE_LIST);
    touch(c, queue_key(c, "ring"), TYPE_LIST);
    exists(c, part_key(c, row_key(c, id), "lock"));
    if (group) touch_lane(c, group);
    return row_field(c, queue_key(c, "meta"), word[W_CONCURRENCY]);
}

void wake_ceiling(Call *c, size_t freed) {
    if (length_of(c, queue_key(c, "pending"), TYPE_ZSET) || exists(c, queue_key(c, "ring"))) wake_flat(c, freed);
}

void end_claim(Call *c, Str *id, Str *group, bool ceiling) {
    bool freed = zset_remove(c, queue_key(c, "active"), id);
    zset_remove(c, queue_key(c, "pending"), id);
    zset_remove(c, queue_key(c, "schedule"), id);
    erase(c, part_key(c, row_key(c, id), "lock"));
    if (group) {
        leave_lane(c, group, id);
        if (freed) {
            free_slots(c, group, 1);
            offer(c, group, true);
        }
    }
    if (freed && ceiling) wake_ceiling(c, 1);
}
