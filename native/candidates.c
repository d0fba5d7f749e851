#include "candidates.h"

#include <math.h>
#include <stdio.h>

#include "store.h"

typedef enum { UNSEEN, TAKE, PASS, BURY, DROP, MOVE } Judgement;

/* A member and its row. */
typedef struct {
    Str *id, *key;
    Key *open; /* the row */
    Str *attempts, *payload, *state, *group, *held, *crashes, *failures, *cancel, *expires, *parent;
    bool leased;
    double lease;
} Candidate;

/* The fields of a job that nobody has claimed yet come first. */
static void read_candidate(Claim *claim, Candidate *one) {
    one->leased = claim->active && VM_ZsetScore(claim->active, one->id, &one->lease) == API_OK;
    one->key = row_key(claim->c, one->id);
    one->open = open_both(claim->c, one->key, TYPE_HASH);
    RowReader row = row_reader(one->open);
    one->attempts = row_next(&row, W_ATTEMPTS);
    one->payload = row_next(&row, W_PAYLOAD);
    one->state = row_next(&row, W_STATE);
    one->group = row_next(&row, W_GROUP);
    one->held = row_next(&row, W_HELD);
    one->failures = row_next(&row, W_FAILURES);
    one->crashes = row_next(&row, W_CRASHES);
    one->cancel = row_next(&row, W_CANCEL);
    one->expires = row_next(&row, W_EXPIRES_AT);
    one->parent = row_next(&row, W_PARENT);
}

double counted_crashes(Call *c, const Str *crashes, const Str *attempts) {
    Text text = text_of(crashes);
    const char *colon = crashes ? memchr(text.at, ':', text.len) : NULL;
    if (!colon || !attempts) return 0;
    Text count = {text.at, (size_t)(colon - text.at)};
    if (!same((Text){colon + 1, text.len - count.len - 1}, text_of(attempts))) return 0;
    return number_of(str_of(c, count), 0);
}

/* Whether the row is that of a flow's parent with children out: nobody runs it. */
static bool is_waiting(Call *c, const Candidate *one) {
    double out;
    if (!is(one->state, "awaiting_children")) return false;
    return count_read(c, part_key(c, one->key, "dependencies"), &out) && out > 0;
}

static bool stands_in(Key *set, Str *id) {
    double score;
    return set && VM_ZsetScore(set, id, &score) == API_OK;
}

/* Whether the id stands where nobody claims it: under a live lease, due later, dead, waiting. */
static bool is_elsewhere(Claim *claim, const Candidate *one) {
    if (one->leased && one->lease > (double)claim->c->now) return true;
    if (is(one->state, "scheduled") && stands_in(claim->schedule, one->id)) return true;
    if (is(one->state, "dead") && stands_in(claim->dead, one->id)) return true;
    return is_waiting(claim->c, one);
}

static Str *said(Call *c, Text start, Text end) {
    Text parts[] = {start, end};
    return joined(c, parts, 2);
}

static Str *said_of_crashes(Call *c, double crashes) {
    char text[96];
    int len = snprintf(text, sizeof text, "crashed: %.14g claims in a row never ended", crashes);
    return VM_CreateString(c->ctx, text, (size_t)len);
}

/* Of a job that crashed before: buried when it has just crashed once too often, else a suspect takes the one place there is
 * for it, or waits. */
static Judgement judge_crashed(Claim *claim, const Candidate *one, double *crashes, Str **reason) {
    *crashes = counted_crashes(claim->c, one->crashes, one->attempts) + (one->held ? 1 : 0);
    if (one->held && *crashes >= claim->max_crashes) {
        *reason = said_of_crashes(claim->c, *crashes);
        return BURY;
    }
    if (*crashes < 2) return TAKE;
    if (claim->suspects < 1) return PASS;
    claim->suspects--;
    return TAKE;
}

static Judgement judge(Claim *claim, const Source *source, const Candidate *one, double *crashes, Str **reason) {
    if (is_elsewhere(claim, one)) return DROP;
    if (one->group && !source->name) return MOVE;
    if (one->cancel) {
        *reason = said(claim->c, TEXT("cancelled: "), text_of(one->cancel));
        return BURY;
    }
    if (number_of(one->expires, INFINITY) <= (double)claim->c->now) {
        *reason = str_of(claim->c, TEXT("expired"));
        return BURY;
    }
    if (!one->held && !one->crashes) return TAKE;
    return judge_crashed(claim, one, crashes, reason);
}

bool has_more(Claim *claim, Source *source) {
    if (source->ended) return false;
    if (!source->opened) {
        source->opened = true;
        source->cursor = open_read(claim->c, source->key, TYPE_ZSET);
        if (source->cursor) VM_ZsetFirstInScoreRange(source->cursor, -INFINITY, INFINITY, 0, 0);
    }
    source->ended = !source->cursor || VM_ZsetRangeEndReached(source->cursor);
    return !source->ended;
}

void close_source(Source *source) {
    if (source->cursor) VM_CloseKey(source->cursor);
    source->cursor = NULL;
    source->ended = source->opened = true;
}

/* The token of the claim that is made now, and what it holds by. */
static void count_attempt(Claim *claim, Str *attempts) {
    Call *c = claim->c;
    if (claim->token && same(text_of(attempts), text_of(claim->attempts))) return;
    claim->attempts = attempts;
    claim->token = number_str(c, number_of(attempts, 0) + 1);
    Text parts[] = {text_of(claim->token), TEXT(":"), text_of(claim->random)};
    claim->held = joined(c, parts, 3);
}

/* The row's handle for the writing pass. An id with a colon may name what stands beside another row, its lock for one, which
 * this claim may delete: its row is opened anew. */
static Key *kept_open(const Candidate *one) {
    Text id = text_of(one->id);
    if (!memchr(id.at, ':', id.len)) return one->open;
    VM_CloseKey(one->open);
    return NULL;
}

static void take(Claim *claim, Source *source, const Candidate *one, double crashes) {
    Taken *job = &claim->jobs[claim->count++];
    count_attempt(claim, one->attempts);
    *job = (Taken){.id = one->id,
                   .row = one->key,
                   .open = kept_open(one),
                   .payload = one->payload,
                   .token = claim->token,
                   .held = claim->held,
                   .group = source->name ? source->name : word[W_EMPTY],
                   .failures = one->failures ? one->failures : word[W_ZERO],
                   .crashes = crashes,
                   .is_child = one->parent};
    list_add(claim->c, &claim->leave, one->id);
    if (!source->name) return;
    list_add(claim->c, &source->leave, one->id);
    /* Somebody put back what is still in active: its slot was never given back. */
    if (!one->leased) source->started++;
    job->regroup = !one->group || !same(text_of(one->group), text_of(source->name));
}

static void file(Claim *claim, Files *files, const Source *source, const Candidate *one, Str *reason) {
    if (files->n == files->room) {
        size_t room = files->room ? 2 * files->room : 16;
        Filed *at = pool(claim->c, room, sizeof *at);
        if (files->n) memcpy(at, files->at, files->n * sizeof *at);
        files->at = at;
        files->room = room;
    }
    files->at[files->n++] = (Filed){
        .id = one->id, .group = source->name ? source->name : one->group, .reason = reason, .leased = one->leased};
}

/* An id that stands in two sets is judged once and leaves the second; one that was passed over stays in the first. */
static bool was_judged(Claim *claim, Source *source, Str *id) {
    intptr_t seen = claim->lanes ? (intptr_t)*table_at(claim->c, &claim->seen, id) : UNSEEN;
    if (seen == UNSEEN) return false;
    if (seen != PASS || !source->name) list_add(claim->c, &claim->leave, id);
    list_add(claim->c, &source->leave, id);
    return true;
}

/* Files a member as what it is judged to be; whether it is taken. */
static bool file_member(Claim *claim, Source *source, Str *id) {
    double crashes = 0;
    Str *reason = NULL;
    Candidate one = {.id = id};
    read_candidate(claim, &one);
    Judgement what = judge(claim, source, &one, &crashes, &reason);
    if (claim->lanes) *table_at(claim->c, &claim->seen, id) = (void *)(intptr_t)what;
    if (what == TAKE) {
        take(claim, source, &one, crashes);
        return true;
    }
    VM_CloseKey(one.open);
    if (what == PASS) {
        claim->passed = source->passed = true;
        return false;
    }
    if (what == BURY) file(claim, &claim->bury, source, &one, reason);
    if (what == MOVE) file(claim, &claim->move, source, &one, NULL);
    list_add(claim->c, &claim->leave, id);
    list_add(claim->c, &source->leave, id);
    return false;
}

bool next_job(Claim *claim, Source *source) {
    while (claim->looked < claim->look && has_more(claim, source)) {
        Str *id = VM_ZsetRangeCurrentElement(source->cursor, NULL);
        VM_ZsetRangeNext(source->cursor);
        claim->looked++;
        if (!was_judged(claim, source, id) && file_member(claim, source, id)) return true;
    }
    return false;
}
