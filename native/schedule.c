/* EMQ.SCHEDULE and EMQ.RESCHEDULE: a run-at is a score of the one schedule set. */
#include "commands.h"
#include "due.h"
#include "store.h"

/* KEYS row, schedule; ARGV id, payload, mode, due. Replies 1 admitted, 0 duplicate. */
int schedule(Call *c) {
    double score;
    const char *wrong = due_at(c, c->args[2], c->args[3], &score);
    if (wrong) return refuse_shape(c, wrong);
    if (!is_job(c->args[0])) return refuse(c, NOT_A_JOB);
    if (exists(c, c->keys[0])) return answer_integer(c, 0);
    touch(c, c->keys[1], TYPE_ZSET);
    if (!may_write(c)) return refused(c);
    Pair row[] = {{W_STATE, word[W_SCHEDULED]}, {W_ATTEMPTS, word[W_ZERO]}, {W_PAYLOAD, c->args[1]}};
    row_write(c, c->keys[0], row, 3);
    zset_add(c, c->keys[1], score, c->args[0]);
    return answer_integer(c, 1);
}

/* KEYS row, schedule; ARGV id, mode, due. Replies 1 rescored, -1 gone. */
int reschedule(Call *c) {
    double score, before;
    const char *wrong = due_at(c, c->args[1], c->args[2], &score);
    if (wrong) return refuse_shape(c, wrong);
    if (!is_job(c->args[0])) return refuse(c, NOT_A_JOB);
    Str *state = row_field(c, c->keys[0], word[W_STATE]);
    bool parked = zset_score(c, c->keys[1], c->args[0], &before);
    if (!exists(c, c->keys[0])) return answer_integer(c, -1);
    if (!parked || !is(state, "scheduled")) return refuse(c, "EMQSTATE reschedule not scheduled");
    if (!may_write(c)) return refused(c);
    zset_rescore(c, c->keys[1], score, c->args[0]);
    return answer_integer(c, 1);
}
