/* EMQ.RETRY: the handler failed; the job is scheduled again, or dead once its failures reach max_attempts or it was
 * cancelled. Sent again with the same token it gives the recorded answer and writes nothing. */
#include "commands.h"
#include "ending.h"
#include "flow.h"
#include "held.h"
#include "store.h"

#define MISMATCH "EMQSTALE retry token mismatch"

enum { ATTEMPTS, HELD, SETTLED, STATE, GROUP, FAILURES, CANCEL, FIELD_COUNT };
/* The places in ARGV. */
enum { ID, TOKEN, WAIT, MOST, ERROR, BASE, TOLD, PARENT };

typedef struct {
    Str *row[FIELD_COUNT];
    Str *reason;
    double failures, score;
    bool late, dead; /* late: the row is dead already; its failure counts, nothing else moves */
    Child child;
} Failure;

/* `sq:fp`, `sq:id`, `xq:fp` or `xq:id` and the parent: they count where the row does not say. */
static void told_by_caller(Call *c, Child *child) {
    if (c->n_args <= PARENT) return;
    Text told = text_of(c->args[TOLD]);
    if (told.len < 4 || told.at[2] != ':') return;
    bool elsewhere = starts_with(told, TEXT("xq"));
    int parent = elsewhere ? PARENT + 1 : PARENT;
    if (!child->parent && parent < c->n_args && text_of(c->args[parent]).len) {
        child->parent = c->args[parent];
        child->parent_queue = elsewhere ? c->args[PARENT] : NULL;
    }
    if (!child->policy) child->policy = str_of(c, (Text){told.at + 3, told.len - 3});
}

static void decide(Call *c, Failure *f, long long most) {
    f->failures = number_of(f->row[FAILURES], 0) + 1;
    f->late = is(f->row[STATE], "dead");
    f->dead = f->late || f->row[CANCEL] || f->failures >= (double)most;
    f->reason = c->args[ERROR];
    if (f->row[CANCEL]) {
        Text parts[] = {TEXT("cancelled: "), text_of(f->row[CANCEL])};
        f->reason = joined(c, parts, 2);
    }
}

static void write_row(Call *c, const Failure *f) {
    static const int CLAIM[] = {W_HELD, W_CRASHES};
    Text settled[] = {token_of(c->args[TOKEN]), f->dead ? TEXT(":dead") : TEXT(":scheduled")};
    Pair row[] = {
        {W_STATE, word[f->dead ? W_DEAD : W_SCHEDULED]},
        {W_FAILURES, number_str(c, f->failures)},
        {W_SETTLED, joined(c, settled, 2)},
        {W_LAST_ERROR, f->reason},
    };
    row_clear(c, c->keys[3], CLAIM, 2);
    /* A late failure: the reason of the death stays. */
    row_write(c, c->keys[3], row, f->late ? 3 : 4);
}

static void file_dead(Call *c, const Failure *f) {
    zset_add(c, c->keys[2], 0, c->args[ID]);
    if (f->late) return;
    field_add(c, queue_key(c, "metrics:failed"), word[W_COUNT], 1);
    died(c, &f->child, f->reason);
}

static void touch_failure(Call *c, Failure *f) {
    f->child = read_child(c, c->args[ID]);
    told_by_caller(c, &f->child);
    touch_ended(c, &f->child);
    touch(c, queue_key(c, "metrics:failed"), TYPE_HASH);
}

static void write_failure(Call *c, const Failure *f, bool ceiling) {
    end_claim(c, c->args[ID], f->row[GROUP], ceiling);
    write_row(c, f);
    if (f->dead) {
        file_dead(c, f);
    } else {
        zset_add(c, c->keys[1], f->score, c->args[ID]);
    }
}

/* KEYS active, schedule, dead, row, ...; ARGV id, token, delay_ms, max_attempts, error, base, and optionally what a caller says
 * of the parent. Replies scheduled or dead. */
int retry(Call *c) {
    static const int FIELDS[] = {W_ATTEMPTS, W_HELD, W_SETTLED, W_STATE, W_GROUP, W_FAILURES, W_CANCEL};
    Failure f;
    long long wait, most;
    if (!whole(c->args[WAIT], &wait)) return refuse_shape(c, "delay_ms must be a non-negative integer");
    if (!whole(c->args[MOST], &most) || !most) return refuse_shape(c, "max_attempts must be a positive integer");
    row_read(c, c->keys[3], FIELDS, f.row, FIELD_COUNT);
    if (!f.row[ATTEMPTS]) return refuse(c, "EMQSTALE job gone");
    if (is_stale(f.row[ATTEMPTS], f.row[HELD], c->args[TOKEN])) return refuse(c, MISMATCH);
    Text answer = settled_answer(f.row[SETTLED], token_of(c->args[TOKEN]));
    if (same(answer, TEXT("scheduled")) || same(answer, TEXT("dead"))) return answer_string(c, answer);
    if (answer.at) return refuse(c, MISMATCH);
    f.score = (double)c->now + (double)wait;
    bool ceiling = touch_ending(c, c->args[ID], f.row[GROUP]);
    touch_failure(c, &f);
    if (!may_write(c)) return refused(c);
    decide(c, &f, most);
    write_failure(c, &f, ceiling);
    return answer_string(c, f.dead ? TEXT("dead") : TEXT("scheduled"));
}
