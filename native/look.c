/* EMQ.LOOK: how many jobs a claim could take now. */
#include <math.h>

#include "commands.h"
#include "due.h"
#include "lanes.h"
#include "store.h"

static double lane_share(Call *c, Str *group) {
    double depth = (double)length_of(c, lane_key(c, group), TYPE_ZSET);
    if (set_has(c, queue_key(c, "paused"), group)) return 0;
    double limit = number_of(row_field(c, queue_key(c, "glimit"), group), INFINITY);
    double busy = number_of(row_field(c, queue_key(c, "gactive"), group), 0);
    return fmin(depth, fmax(0, limit - busy));
}

/* What the queue's pause, ceiling and rate leave of `most`. */
static double room_for(Call *c, double most) {
    static const int FIELDS[] = {W_PAUSED, W_CONCURRENCY, W_MAX, W_WINDOW_MS};
    Str *meta[4];
    double spent = 0;
    row_read(c, c->keys[3], FIELDS, meta, 4);
    double active = (double)length_of(c, c->keys[1], TYPE_ZSET);
    if (meta[0]) return 0;
    double room = fmin(most, number_of(meta[1], INFINITY) - active);
    if (!isnan(number_of(meta[2], NAN)) && floor(number_of(meta[3], 0)) > 0) {
        count_read(c, queue_key(c, "limiter"), &spent);
        room = fmin(room, number_of(meta[2], 0) - spent);
    }
    return fmax(0, floor(room));
}

/* KEYS pending, active, ring, meta; ARGV base, n. Replies the number, at most n. */
int look(Call *c) {
    double most = number_of(c->args[1], NAN);
    if (!(most <= LONGEST_MS)) return refuse_shape(c, "n must be a number");
    double room = room_for(c, most);
    double count = (double)length_of(c, c->keys[0], TYPE_ZSET);
    Key *ring = count < room ? open_read(c, c->keys[2], TYPE_LIST) : NULL;
    if (ring) {
        long length = (long)VM_ValueLength(ring);
        for (long i = 0; i < length && count < room; i++) count += lane_share(c, VM_ListGet(ring, i));
        VM_CloseKey(ring);
    }
    return answer_integer(c, (long long)fmin(count, room));
}
