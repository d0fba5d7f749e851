/* EMQ.ENQUEUE, EMQ.ENQUEUE.MANY, EMQ.LANE.ENQUEUE: a job is admitted, to flat pending or to the lane of its group. */
#include "commands.h"
#include "lanes.h"
#include "store.h"

static void write_job(Call *c, Str *row, Str *payload) {
    Pair fields[] = {{W_STATE, word[W_PENDING]}, {W_ATTEMPTS, word[W_ZERO]}, {W_PAYLOAD, payload}};
    row_write(c, row, fields, 3);
}

/* KEYS row, pending; ARGV id, payload. Replies 1 admitted, 0 duplicate. */
int enqueue(Call *c) {
    if (!is_job(c->args[0])) return refuse(c, NOT_A_JOB);
    if (exists(c, c->keys[0])) return answer_integer(c, 0);
    touch(c, c->keys[1], TYPE_ZSET);
    touch(c, queue_key(c, "ready"), TYPE_LIST);
    if (!may_write(c)) return refused(c);
    write_job(c, c->keys[0], c->args[1]);
    zset_add(c, c->keys[1], 0, c->args[0]);
    wake_flat(c, 1);
    return answer_integer(c, 1);
}

/* KEYS row, lane, ring, paused, glimit, gactive, wake; ARGV id, payload, group. Replies 1 admitted, 0 duplicate. */
int lane_enqueue(Call *c) {
    Str *id = c->args[0], *group = c->args[2];
    if (!is_job(id)) return refuse(c, NOT_A_JOB);
    if (exists(c, c->keys[0])) return answer_integer(c, 0);
    touch_lane(c, group);
    if (!may_write(c)) return refused(c);
    Pair fields[] = {{W_STATE, word[W_PENDING]}, {W_ATTEMPTS, word[W_ZERO]}, {W_PAYLOAD, c->args[1]}, {W_GROUP, group}};
    row_write(c, c->keys[0], fields, 4);
    zset_add(c, c->keys[1], 0, id);
    offer(c, group, false);
    return answer_integer(c, 1);
}

enum { NOT_JOB = -1, DUPLICATE = 0, ADMITTED = 1 };

/* An id that comes twice finds the row of the first. */
static int admit_flat(Call *c, Str *id, Str *payload, List *admitted) {
    if (!is_job(id)) return NOT_JOB;
    Str *row = row_key(c, id);
    if (exists(c, row)) return DUPLICATE;
    write_job(c, row, payload);
    list_add(c, admitted, id);
    return ADMITTED;
}

/* KEYS pending; ARGV base, id, payload, id, payload … Replies a verdict per pair. */
int enqueue_many(Call *c) {
    if (c->n_args % 2 == 0) return refuse_shape(c, "pairs must be an id and a payload each");
    Str **pairs = c->args + 1;
    int n = (c->n_args - 1) / 2;
    /* Elsewhere only a slot on its way to another node could tell a row's absence from its departure. */
    for (int i = 0; c->cluster && i < n; i++) exists(c, row_key(c, pairs[2 * i]));
    touch(c, c->keys[0], TYPE_ZSET);
    touch(c, queue_key(c, "ready"), TYPE_LIST);
    if (!may_write(c)) return refused(c);
    List admitted = {0};
    VM_ReplyWithArray(c->ctx, n);
    for (int i = 0; i < n; i++) {
        VM_ReplyWithLongLong(c->ctx, admit_flat(c, pairs[2 * i], pairs[2 * i + 1], &admitted));
    }
    zset_add_all(c, c->keys[0], 0, &admitted);
    wake_flat(c, admitted.n);
    return API_OK;
}
