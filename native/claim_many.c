/* EMQ.CLAIM.MANY: the twin of lua/claim_many.lua. Fills free slots from flat pending and the ring in fair turn. */
#include <math.h>
#include <stdio.h>

#include "commands.h"
#include "lanes.h"
#include "receipt.h"
#include "store.h"
#include "taking.h"

enum { MOST = 1000, LOOK_FURTHER = 4096 };
/* An expiry has to fit into the server's 64 bits of milliseconds. */
static const long long LONGEST_LEASE_MS = 1LL << 53;
enum { KEY_PENDING, KEY_ACTIVE, KEY_RING, KEY_META, KEY_RECEIPT };
enum { BASE, LEASE, ROOM, READ, RANDOM, MAX_CRASHES, SUSPECTS };
enum { PAUSED, CONCURRENCY, MAX, WINDOW, FLAT_TURN, LANE_TURN, META_FIELDS };

/* What bounds this claim: free slots, the queue's ceiling, its rate. */
typedef struct {
    double room, spent, window;
    bool limited;
    char rate[48]; /* `rate:<ms until the window ends>` where it is the rate that bounds it */
} Bounds;

/* Three centuries: a longer window of the rate is taken for this one. */
#define LONGEST 1e13

static long long window_left(Call *c, Str *limiter) {
    Reply *reply = VM_Call(c->ctx, "PTTL", "s", limiter);
    return reply ? VM_CallReplyInteger(reply) : 0;
}

static void bound_by_rate(Call *c, Bounds *b, double max, double window) {
    b->window = floor(window);
    if (b->window > LONGEST) b->window = LONGEST;
    b->limited = !isnan(max) && b->window > 0;
    if (!b->limited) return;
    Str *limiter = queue_key(c, "limiter");
    if (!count_read(c, limiter, &b->spent)) b->spent = 0;
    double left = max - b->spent;
    /* What the window still lets start, where that is less than what is free. */
    if (left >= b->room) return;
    b->room = left;
    double wait = b->spent > 0 ? (double)window_left(c, limiter) : b->window;
    snprintf(b->rate, sizeof b->rate, "rate:%.14g", fmax(fmin(wait, LONGEST), 1));
}

static Bounds bounds_of(Call *c, Str **meta, double room) {
    Bounds b = {.room = fmin(room, MOST)};
    double ceiling = number_of(meta[CONCURRENCY], NAN);
    if (!isnan(ceiling)) b.room = fmin(b.room, ceiling - (double)length_of(c, c->keys[KEY_ACTIVE], TYPE_ZSET));
    bound_by_rate(c, &b, number_of(meta[MAX], NAN), number_of(meta[WINDOW], 0));
    b.room = floor(b.room);
    return b;
}

static int reply_none(Call *c, double number, const char *why) {
    if (!may_write(c)) return refused(c);
    reply_start(c, number, why, c->args[RANDOM]);
    for (int i = 0; i < 3; i++) VM_ReplyWithArray(c->ctx, 0);
    return API_OK;
}

/* Flat pending takes its turn among the lanes as one of them: when each of those that stood on the ring at its last turn has
 * had its own or fallen off. Answers the turns that are still before it. */
static double fill(Claim *claim, Source *flat, Rotation *rot, double turns) {
    bool flat_open = true;
    while (claim->count < claim->room) {
        bool lane = claim->lanes && next_lane(claim, rot);
        if (flat_open && (!lane || turns < 1)) {
            flat_open = next_job(claim, flat);
            if (flat_open) turns = rot->lanes;
        } else if (!lane) {
            break;
        } else if (serve_lane(claim, rot)) {
            turns = fmax(turns - 1, 0);
        }
    }
    return turns;
}

static void close_reads(Claim *claim, Source *flat, Rotation *rot) {
    Key *open[] = {claim->active, claim->schedule, claim->dead};
    for (size_t i = 0; i < 3; i++) {
        if (open[i]) VM_CloseKey(open[i]);
    }
    close_source(flat);
    for (size_t i = 0; i < rot->all.n; i++) close_source(rot->all.at[i]);
}

/* Whether nothing is left that anyone could claim: tokens that stand now would only wake someone for nothing. */
static bool is_idle(Claim *claim, Source *flat, const Rotation *rot) {
    bool left = claim->count >= claim->room || flat->passed || has_more(claim, flat);
    return !left && !claim->move.n && !entries_left(rot);
}

static void drop_tokens(Call *c) {
    erase(c, queue_key(c, "ready"));
    erase(c, queue_key(c, "wake"));
}

static void count_rate(Call *c, const Bounds *b, size_t count) {
    Str *limiter = queue_key(c, "limiter");
    if (!b->limited) return;
    if (b->spent > 0) {
        VM_Call(c->ctx, "INCRBY", "!sl", limiter, (long long)count);
    } else {
        string_write(c, limiter, integer_str(c, (long long)count), c->now + cut_integer(b->window));
    }
}

/* The jobs' rows and sets, the receipt, the rate. */
static void write_taken(Claim *claim, const Bounds *b, double number, long long lease) {
    Call *c = claim->c;
    List ids = {0};
    if (!claim->count) return;
    for (size_t i = 0; i < claim->count; i++) list_add(c, &ids, claim->jobs[i].id);
    zset_remove_all(c, queue_key(c, "schedule"), &ids);
    zset_remove_all(c, queue_key(c, "dead"), &ids);
    hand_out(claim, c->keys[KEY_ACTIVE], c->now + lease);
    receipt_write(claim, c->keys[KEY_RECEIPT], number, lease);
    count_rate(c, b, claim->count);
}

/* Where the next claim goes on: flat pending's turn, and that of a lane that was not over. */
static void write_turns(Claim *claim, const Rotation *rot, Str **meta, double turns) {
    Call *c = claim->c;
    Str *key = c->keys[KEY_META];
    if (claim->lanes && claim->depth && !(turns == number_of(meta[FLAT_TURN], NAN))) {
        field_write(c, key, word[W_FLAT_TURN], number_str(c, turns));
    }
    Str *cut = rot->cut ? rot->cut : rot->cut_name.at ? meta[LANE_TURN] : NULL;
    if (cut && !same(text_of(cut), text_of(meta[LANE_TURN]))) field_write(c, key, word[W_LANE_TURN], cut);
    if (meta[LANE_TURN] && !cut) field_clear(c, key, word[W_LANE_TURN]);
}

static void write_claim(Claim *claim, const Rotation *rot, const Bounds *b, double number, long long lease) {
    Call *c = claim->c;
    List offers = {0};
    Table offered = {0};
    if (rot->visited) write_ring(c, rot);
    leave_sets(claim, rot, c->keys[KEY_PENDING]);
    move_filed(claim, &offers);
    bury_filed(claim, &offers);
    write_taken(claim, b, number, lease);
    for (size_t i = 0; i < offers.n; i++) {
        if (!table_mark(c, &offered, offers.at[i])) offer(c, offers.at[i], false);
    }
}

static void reply_claim(Claim *claim, double number, const char *why) {
    Call *c = claim->c;
    reply_start(c, number, why, claim->random);
    reply_jobs(c, claim->jobs, claim->count);
    VM_ReplyWithArray(c->ctx, (long)(2 * claim->bury.n));
    for (size_t i = 0; i < claim->bury.n; i++) {
        VM_ReplyWithString(c->ctx, claim->bury.at[i].id);
        VM_ReplyWithString(c->ctx, claim->bury.at[i].reason);
    }
    reply_kin(c, claim->jobs, claim->count);
}

static Claim claim_of(Call *c, double room) {
    Claim claim = {.c = c, .random = c->args[RANDOM], .room = (size_t)room, .look = (size_t)room + LOOK_FURTHER};
    claim.max_crashes = number_of(c->args[MAX_CRASHES], 0);
    claim.suspects = number_of(c->args[SUSPECTS], 0);
    claim.depth = length_of(c, c->keys[KEY_PENDING], TYPE_ZSET);
    claim.active = open_read(c, c->keys[KEY_ACTIVE], TYPE_ZSET);
    claim.schedule = open_read(c, queue_key(c, "schedule"), TYPE_ZSET);
    claim.dead = open_read(c, queue_key(c, "dead"), TYPE_ZSET);
    claim.jobs = pool(c, claim.room, sizeof *claim.jobs);
    return claim;
}

static int take_jobs(Call *c, Str **meta, const Bounds *b, double read, long long lease) {
    Claim claim = claim_of(c, b->room);
    Source flat = {.key = c->keys[KEY_PENDING]};
    Rotation rot;
    rotation_start(&rot, &claim, c->keys[KEY_RING], meta[LANE_TURN]);
    claim.lanes = rot.length > 0;
    double turns = fmin(number_of(meta[FLAT_TURN], (double)rot.length), (double)rot.length);
    turns = fill(&claim, &flat, &rot, turns);
    bool idle = is_idle(&claim, &flat, &rot), few = claim.count < claim.room;
    close_reads(&claim, &flat, &rot);
    touch_filed(&claim);
    if (!may_write(c)) return refused(c);

    double number = claim.count ? read + 1 : read;
    if (idle) drop_tokens(c);
    write_claim(&claim, &rot, b, number, lease);
    write_turns(&claim, &rot, meta, turns);
    const char *bounded = *b->rate ? b->rate : "ok";
    reply_claim(&claim, number, few ? (claim.passed ? "suspects" : "ok") : bounded);
    return API_OK;
}

static bool are_numbers(const Call *c) {
    static const int NUMBERS[] = {ROOM, READ, MAX_CRASHES, SUSPECTS};
    for (size_t i = 0; i < 4; i++) {
        if (isnan(number_of(c->args[NUMBERS[i]], NAN))) return false;
    }
    return true;
}

/* KEYS pending, active, ring, meta, claimed:<consumer>; ARGV base, lease_ms, n, number, random, max_crashes, suspects. Replies
 * number, why, random, jobs, buried, flow children. */
int claim_many(Call *c) {
    static const int FIELDS[] = {W_PAUSED, W_CONCURRENCY, W_MAX, W_WINDOW_MS, W_FLAT_TURN, W_LANE_TURN};
    Str *meta[META_FIELDS];
    long long lease;
    if (c->n_keys != KEY_RECEIPT + 1 || !starts_with(text_of(c->keys[KEY_RECEIPT]), text_of(queue_key(c, "claimed:")))) {
        return refuse_shape(c, "key 5 must be an emq:{q}:claimed:<consumer>");
    }
    if (!are_numbers(c)) return refuse_shape(c, "arguments 3, 4, 6 and 7 must be numbers");
    if (!whole(c->args[LEASE], &lease) || lease < 1 || lease > LONGEST_LEASE_MS) {
        return refuse(c, "ERR claim lease_ms must be a whole number above 0");
    }
    double read = number_of(c->args[READ], 0), room = number_of(c->args[ROOM], 0);
    Str *receipt = string_read(c, c->keys[KEY_RECEIPT]);
    if (receipt && receipt_number(c, receipt) > read) {
        return replay(c, c->keys[KEY_ACTIVE], c->keys[KEY_RECEIPT], receipt, lease);
    }
    if (room < 1) return reply_none(c, read, "ok");
    row_read(c, c->keys[KEY_META], FIELDS, meta, META_FIELDS);
    if (meta[PAUSED]) return reply_none(c, read, "paused");
    Bounds bounds = bounds_of(c, meta, room);
    if (bounds.room < 1) return reply_none(c, read, *bounds.rate ? bounds.rate : "ceiling");
    return take_jobs(c, meta, &bounds, read, lease);
}
