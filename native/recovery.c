#include "recovery.h"

#include "lanes.h"
#include "store.h"

/* ---- reading ---- */

void member_add(Call *c, Members *members, Member member) {
    if (members->n == members->room) {
        size_t room = members->room ? 2 * members->room : 16;
        Member *at = pool(c, room, sizeof *at);
        if (members->n) memcpy(at, members->at, members->n * sizeof *at);
        members->at = at;
        members->room = room;
    }
    members->at[members->n++] = member;
}

static void touch_sets(Call *c) {
    static const char *const SETS[] = {"active", "pending", "schedule", "dead"};
    for (size_t i = 0; i < 4; i++) touch(c, queue_key(c, SETS[i]), TYPE_ZSET);
    touch(c, queue_key(c, "ready"), TYPE_LIST);
}

Members read_members(Call *c, const List *ids) {
    static const int FIELDS[] = {W_STATE, W_ATTEMPTS, W_GROUP, W_STALLED};
    Members members = {NULL, 0, 0};
    for (size_t i = 0; i < ids->n; i++) {
        Str *f[4], *row = row_key(c, ids->at[i]);
        row_read(c, row, FIELDS, f, 4);
        if (f[2]) touch_lane(c, f[2]);
        member_add(c, &members, (Member){ids->at[i], row, f[0], f[2], f[3], f[0] || f[1]});
    }
    touch_sets(c);
    return members;
}

bool is_waiting(Call *c, const Str *state, const Str *row) {
    double out;
    if (!is(state, "awaiting_children")) return false;
    return count_read(c, part_key(c, row, "dependencies"), &out) && out > 0;
}

Members recoverable(Call *c, const Members *members) {
    Members back = {NULL, 0, 0};
    Str *schedule_key = queue_key(c, "schedule");
    for (size_t i = 0; i < members->n; i++) {
        Member m = members->at[i];
        double score;
        bool scheduled = is(m.state, "scheduled") && zset_score(c, schedule_key, m.id, &score);
        bool elsewhere = is(m.state, "dead") || scheduled;
        if (m.exists && !elsewhere && !is_waiting(c, m.state, m.row)) member_add(c, &back, m);
    }
    return back;
}

/* ---- writing ---- */

List ids_of(Call *c, const Members *members) {
    List ids = {NULL, 0, 0};
    for (size_t i = 0; i < members->n; i++) list_add(c, &ids, members->at[i].id);
    return ids;
}

void remove_from(Call *c, const char *set, const Members *members) {
    List ids = ids_of(c, members);
    zset_remove_all(c, queue_key(c, set), &ids);
}

void drop_leases(Call *c, const Members *members) {
    remove_from(c, "active", members);
    for (size_t i = 0; i < members->n; i++) {
        if (members->at[i].group) free_slots(c, members->at[i].group, 1);
    }
}

void put_back(Call *c, const Members *members) {
    List flat = {NULL, 0, 0};
    for (size_t i = 0; i < members->n; i++) {
        const Member *m = &members->at[i];
        field_write(c, m->row, word[W_STATE], word[W_PENDING]);
        if (m->group) {
            zset_add(c, lane_key(c, m->group), 0, m->id);
        } else {
            list_add(c, &flat, m->id);
        }
    }
    zset_add_all(c, queue_key(c, "pending"), 0, &flat);
    wake_flat(c, flat.n);
}

void offer_lanes(Call *c, const Members *members) {
    for (size_t i = 0; i < members->n; i++) {
        if (members->at[i].group) offer(c, members->at[i].group, false);
    }
}
