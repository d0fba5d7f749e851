/* EMQ.KEEP and EMQ.DISOWN: what a worker says of all that it holds, many jobs in one call. */
#include <math.h>

#include "commands.h"
#include "due.h"
#include "held.h"
#include "kept.h"
#include "store.h"

enum { ATTEMPTS, HELD, CANCEL, FIELD_COUNT };

/* One pair of the call. `reason` is why the job is not in the caller's hand, in the order gone, stale, not_active. */
typedef struct {
    Str *id, *row, *lock, *cancel;
    const Str *held;
    bool first;
    const char *reason;
} Pledge;

/* The pairs from argument `first` on. */
static Pledge *read_pledges(Call *c, int first, size_t *n) {
    static const int FIELDS[] = {W_ATTEMPTS, W_HELD, W_CANCEL};
    *n = c->n_args > first ? (size_t)(c->n_args - first + 1) / 2 : 0;
    Pledge *pledges = pool(c, *n, sizeof *pledges);
    for (size_t i = 0; i < *n; i++) {
        int at = first + 2 * (int)i;
        Str *row[FIELD_COUNT];
        double lease;
        Pledge one = {.id = c->args[at], .held = at + 1 < c->n_args ? c->args[at + 1] : word[W_EMPTY]};
        one.row = row_key(c, one.id);
        row_read(c, one.row, FIELDS, row, FIELD_COUNT);
        one.cancel = row[CANCEL];
        one.first = is_first(row[ATTEMPTS], row[HELD]);
        if (!row[ATTEMPTS]) {
            one.reason = "gone";
        } else if (is_stale(row[ATTEMPTS], row[HELD], one.held)) {
            one.reason = "stale";
        } else if (!zset_score(c, c->keys[0], one.id, &lease)) {
            one.reason = "not_active";
        }
        pledges[i] = one;
    }
    return pledges;
}

static void reply_word(Call *c, const char *text) {
    VM_ReplyWithStringBuffer(c->ctx, text, strlen(text));
}

/* What is not extended with its reason, and what is extended but asked to end. */
static void reply_lost(Call *c, const Pledge *pledges, size_t n) {
    long count = 0;
    for (size_t i = 0; i < n; i++) count += pledges[i].reason || pledges[i].cancel ? 2 : 0;
    VM_ReplyWithArray(c->ctx, count);
    for (size_t i = 0; i < n; i++) {
        if (!pledges[i].reason && !pledges[i].cancel) continue;
        VM_ReplyWithString(c->ctx, pledges[i].id);
        if (pledges[i].reason) {
            reply_word(c, pledges[i].reason);
        } else {
            Text why[] = {TEXT("cancel:"), text_of(pledges[i].cancel)};
            VM_ReplyWithString(c->ctx, joined(c, why, 2));
        }
    }
}

/* KEYS active; ARGV base, lease_ms, then pairs of id and held. Replies id, reason, … of those that could not be extended (gone,
 * stale, not_active) or are asked to end (cancel:<why>). Never shortens and never revives; the lock, twice the lease, tells
 * others that a keeper holds the job. */
int keep(Call *c) {
    size_t n;
    double lease = number_of(c->args[1], NAN);
    if (!(lease >= 1 && lease <= LONGEST_MS)) return refuse_shape(c, "lease_ms must be a number of milliseconds above 0");
    Pledge *pledges = read_pledges(c, 2, &n);
    for (size_t i = 0; i < n; i++) {
        pledges[i].lock = part_key(c, pledges[i].row, "lock");
        exists(c, pledges[i].lock);
    }
    long long stands = kept_for(c), lasts = (long long)rint(2 * lease);
    bool first = false;
    if (!may_write(c)) return refused(c);
    double deadline = rint((double)c->now + lease);
    for (size_t i = 0; i < n; i++) {
        if (pledges[i].reason) continue;
        zset_raise(c, c->keys[0], deadline, pledges[i].id);
        string_write(c, pledges[i].lock, str_of(c, token_of(pledges[i].held)), c->now + lasts);
        first |= pledges[i].first;
    }
    if (first) note_kept(c, stands, lasts);
    reply_lost(c, pledges, n);
    return API_OK;
}

/* KEYS active; ARGV base, then pairs of id and held. Replies ok, gone, stale or not_active for each. The job keeps its lease and
 * is found by recovery, but leaving it is no crash: only `held` is cleared. */
int disown(Call *c) {
    size_t n;
    Pledge *pledges = read_pledges(c, 1, &n);
    if (!may_write(c)) return refused(c);
    VM_ReplyWithArray(c->ctx, (long)n);
    for (size_t i = 0; i < n; i++) {
        if (!pledges[i].reason) field_clear(c, pledges[i].row, word[W_HELD]);
        reply_word(c, pledges[i].reason ? pledges[i].reason : "ok");
    }
    return API_OK;
}
