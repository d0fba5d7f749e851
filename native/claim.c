/* EMQ.CLAIM, EMQ.CLAIM.BATCH, EMQ.LANE.CLAIM, EMQ.LANE.CLAIM.WEIGHTED: the claims of the reference. They count no crash and
 * leave no receipt; our own worker's is EMQ.CLAIM.MANY. */
#include <math.h>

#include "commands.h"
#include "lanes.h"
#include "store.h"

enum { MOST = 1000 };

/* A row that is claimed, and where the id comes from. */
typedef struct {
    Str *id, *row, *payload, *group;
    double attempts;
} Head;

static bool read_lease(const Call *c, double *deadline) {
    double lease = number_of(c->args[1], NAN);
    *deadline = (double)c->now + lease;
    return !isnan(lease);
}

#define BAD_LEASE "lease_ms must be a number"
#define BAD_ATTEMPTS "ERR hash value is not an integer"

/* The first `most` members. */
static List heads_of(Call *c, Str *set, size_t most) {
    List ids = {0};
    if (most) zset_until(c, set, INFINITY, most, &ids);
    return ids;
}

static Head read_head(Call *c, Str *id) {
    static const int FIELDS[] = {W_PAYLOAD, W_GROUP, W_ATTEMPTS};
    Str *values[3];
    Head head = {.id = id, .row = row_key(c, id)};
    row_read(c, head.row, FIELDS, values, 3);
    head.payload = values[0];
    head.group = values[1];
    head.attempts = number_of(values[2], 0) + 1;
    return head;
}

/* Of a single claim: attempts that are no integer refuse it, as HINCRBY would. */
static bool is_countable(Call *c, const Head *head) {
    long long attempts;
    Str *text = row_field(c, head->row, word[W_ATTEMPTS]);
    return !text || (VM_StringToLongLong(text, &attempts) == API_OK && attempts < INT64_MAX);
}

/* `group` is the lane's, NULL for flat pending. */
static void take(Call *c, const Head *head, Str *group) {
    Pair fields[] = {{W_STATE, word[W_ACTIVE]}, {W_ATTEMPTS, number_str(c, head->attempts)}, {W_GROUP, group}};
    bool regroup = group && !(head->group && same(text_of(head->group), text_of(group)));
    row_write(c, head->row, fields, regroup ? 3 : 2);
}

static void reply_head(Call *c, const Head *head, Str *group) {
    VM_ReplyWithArray(c->ctx, group ? 4 : 3);
    VM_ReplyWithString(c->ctx, head->id);
    if (head->payload) {
        VM_ReplyWithString(c->ctx, head->payload);
    } else {
        VM_ReplyWithNull(c->ctx);
    }
    VM_ReplyWithLongLong(c->ctx, cut_integer(head->attempts));
    if (group) VM_ReplyWithString(c->ctx, group);
}

static int reply_nothing(Call *c) {
    return may_write(c) ? VM_ReplyWithArray(c->ctx, 0) : refused(c);
}

/* The first argument is what a row's key starts with. */
static bool names_rows(Call *c) {
    return same(text_of(c->args[0]), text_of(queue_key(c, "job:")));
}

#define BAD_ROWS "argument 1 must be the emq:{q}:job: of its keys"

/* KEYS pending, active; ARGV emq:{q}:job:, lease_ms. Replies nothing, or id, payload, attempts. */
int claim(Call *c) {
    double deadline, lease;
    if (!names_rows(c)) return refuse_shape(c, BAD_ROWS);
    if (!read_lease(c, &deadline)) return refuse_shape(c, BAD_LEASE);
    List ids = heads_of(c, c->keys[0], 1);
    if (!ids.n) return reply_nothing(c);
    Head head = read_head(c, ids.at[0]);
    zset_score(c, c->keys[1], head.id, &lease);
    if (!is_countable(c, &head)) return refuse(c, BAD_ATTEMPTS);
    if (!may_write(c)) return refused(c);
    take(c, &head, NULL);
    zset_remove(c, c->keys[0], head.id);
    zset_add(c, c->keys[1], deadline, head.id);
    reply_head(c, &head, NULL);
    return API_OK;
}

static Head *read_heads(Call *c, const List *ids) {
    Head *heads = pool(c, ids->n, sizeof *heads);
    for (size_t i = 0; i < ids->n; i++) heads[i] = read_head(c, ids->at[i]);
    return heads;
}

static void take_all(Call *c, const Head *heads, const List *ids, Str *set, Str *group, double deadline) {
    VM_ReplyWithArray(c->ctx, (long)ids->n);
    for (size_t i = 0; i < ids->n; i++) {
        take(c, &heads[i], group);
        reply_head(c, &heads[i], group);
    }
    zset_remove_all(c, set, ids);
    zset_add_all(c, queue_key(c, "active"), deadline, ids);
}

/* KEYS pending, active; ARGV emq:{q}:job:, lease_ms, size. Replies a list of id, payload, attempts. */
int claim_batch(Call *c) {
    double deadline, size = number_of(c->args[2], NAN);
    if (!names_rows(c)) return refuse_shape(c, BAD_ROWS);
    if (!read_lease(c, &deadline)) return refuse_shape(c, BAD_LEASE);
    if (isnan(size)) return refuse_shape(c, "size must be a number");
    if (size < 1) return reply_nothing(c);
    size_t depth = length_of(c, c->keys[0], TYPE_ZSET);
    List ids = heads_of(c, c->keys[0], size < (double)depth ? (size_t)size : depth);
    touch(c, c->keys[1], TYPE_ZSET);
    Head *heads = read_heads(c, &ids);
    if (!may_write(c)) return refused(c);
    take_all(c, heads, &ids, c->keys[0], NULL, deadline);
    return API_OK;
}

/* What the next lane that can be served gives; the lanes before it have fallen off the ring. */
typedef struct {
    long fallen;
    Str *group;
    List ids;
    bool again; /* it can be served once more */
} Turn;

/* Whether the lane gives anything: at most `weight` heads, and no more than there is room for. */
static bool serve(Call *c, Str *group, bool weighted, Turn *turn) {
    Str *limit = row_field(c, queue_key(c, "glimit"), group);
    double busy = number_of(row_field(c, queue_key(c, "gactive"), group), 0);
    double room = number_of(limit, INFINITY) - busy;
    double weight = weighted ? number_of(row_field(c, queue_key(c, "gweight"), group), 1) : 1;
    bool paused = set_has(c, queue_key(c, "paused"), group);
    double depth = (double)length_of(c, lane_key(c, group), TYPE_ZSET);
    if (paused || !(room >= 1) || depth < 1) return false;
    double size = floor(fmin(fmin(fmax(weight, 1), depth), fmin(room, MOST)));
    turn->group = group;
    turn->ids = heads_of(c, lane_key(c, group), (size_t)size);
    turn->again = depth > size && room > size;
    return turn->ids.n > 0;
}

static Turn next_turn(Call *c, bool weighted) {
    Turn turn = {0};
    Key *ring = open_read(c, c->keys[0], TYPE_LIST);
    if (!ring) return turn;
    long length = (long)VM_ValueLength(ring);
    for (; turn.fallen < length; turn.fallen++) {
        if (serve(c, VM_ListGet(ring, turn.fallen), weighted, &turn)) break;
    }
    VM_CloseKey(ring);
    return turn;
}

/* The ring behind a turn: what was hollow is gone, the lane is at the tail or gone too. */
static void turn_ring(Call *c, const Turn *turn) {
    Str *ring = c->keys[0];
    if (turn->fallen) VM_Call(c->ctx, "LTRIM", "!slc", ring, (long long)turn->fallen, "-1");
    if (!turn->group) return;
    if (turn->again) {
        VM_Call(c->ctx, "LMOVE", "!sscc", ring, ring, "LEFT", "RIGHT");
    } else {
        VM_Call(c->ctx, "LREM", "!scs", ring, "0", turn->group);
    }
}

static void take_slots(Call *c, const Turn *turn) {
    field_add(c, queue_key(c, "gactive"), turn->group, (double)turn->ids.n);
}

/* KEYS ring, active; ARGV base, lease_ms. Replies nothing, or id, payload, attempts, group. */
int lane_claim(Call *c) {
    double deadline;
    if (!read_lease(c, &deadline)) return refuse_shape(c, BAD_LEASE);
    Turn turn = next_turn(c, false);
    touch(c, c->keys[1], TYPE_ZSET);
    Head head = turn.group ? read_head(c, turn.ids.at[0]) : (Head){0};
    if (turn.group && !is_countable(c, &head)) return refuse(c, BAD_ATTEMPTS);
    if (!may_write(c)) return refused(c);
    if (!turn.group) {
        turn_ring(c, &turn);
        return reply_nothing(c);
    }
    take(c, &head, turn.group);
    zset_remove(c, lane_key(c, turn.group), head.id);
    zset_add(c, c->keys[1], deadline, head.id);
    take_slots(c, &turn);
    turn_ring(c, &turn);
    reply_head(c, &head, turn.group);
    return API_OK;
}

/* KEYS ring, active; ARGV base, lease_ms. Replies a list of id, payload, attempts, group. */
int lane_claim_weighted(Call *c) {
    double deadline;
    if (!read_lease(c, &deadline)) return refuse_shape(c, BAD_LEASE);
    Turn turn = next_turn(c, true);
    touch(c, c->keys[1], TYPE_ZSET);
    Head *heads = read_heads(c, &turn.ids);
    if (!may_write(c)) return refused(c);
    if (!turn.group) {
        turn_ring(c, &turn);
        return reply_nothing(c);
    }
    take_all(c, heads, &turn.ids, lane_key(c, turn.group), turn.group, deadline);
    take_slots(c, &turn);
    turn_ring(c, &turn);
    return API_OK;
}
