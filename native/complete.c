/* EMQ.COMPLETE: the job is done; its row is deleted with its logs, lock and a flow parent's subkeys, and counted. */
#include "commands.h"
#include "ending.h"
#include "flow.h"
#include "held.h"
#include "store.h"

static const char *const BEHIND[] = {"logs", "dependencies", "processed", "failed", "unsuccessful"};
enum { BEHIND_COUNT = 5 };
/* The places in ARGV of what a caller says of the parent. */
enum { ID, TOKEN, BASE, PARENT, RESULT, OTHER_QUEUE, PARENT_QUEUE };

/* A late completion of a dead job is taken: the work is done. */
static bool is_refused(Str **row, const Str *held) {
    Text answer = settled_answer(row[2], token_of(held));
    bool taken = !answer.at || (same(answer, TEXT("dead")) && is(row[3], "dead"));
    return is_stale(row[0], row[1], held) || !taken;
}

/* A caller names the parent too: it counts where the row does not say. */
static Child child_of_call(Call *c) {
    Child child = read_child(c, c->args[ID]);
    if (child.parent || c->n_args <= PARENT || text_of(c->args[PARENT]).len == 0) return child;
    child.parent = c->args[PARENT];
    bool other = c->n_args > PARENT_QUEUE && is(c->args[OTHER_QUEUE], "xq");
    child.parent_queue = other ? c->args[PARENT_QUEUE] : NULL;
    return child;
}

/* KEYS active, row, …; ARGV id, token, base, and optionally parent id, result, `xq`, parent queue. Replies 1 completed,
 * 0 gone. */
int complete(Call *c) {
    static const int FIELDS[] = {W_ATTEMPTS, W_HELD, W_SETTLED, W_STATE, W_GROUP};
    Str *row[5], *behind[BEHIND_COUNT], *id = c->args[ID];
    row_read(c, c->keys[1], FIELDS, row, 5);
    if (row[0] && is_refused(row, c->args[TOKEN])) return refuse(c, "EMQSTALE complete token mismatch");
    bool ceiling = touch_ending(c, id, row[4]);
    Child child = child_of_call(c);
    touch_ended(c, &child);
    for (int i = 0; i < BEHIND_COUNT; i++) {
        behind[i] = part_key(c, c->keys[1], BEHIND[i]);
        exists(c, behind[i]);
    }
    touch(c, queue_key(c, "metrics:completed"), TYPE_HASH);
    if (!may_write(c)) return refused(c);

    end_claim(c, id, row[4], ceiling);
    /* Of a row that is gone there may be the skeleton that promote makes: it goes with its place. */
    erase(c, c->keys[1]);
    for (int i = 0; i < BEHIND_COUNT; i++) erase(c, behind[i]);
    if (!row[0]) return answer_integer(c, 0);
    zset_remove(c, queue_key(c, "dead"), id);
    field_add(c, queue_key(c, "metrics:completed"), word[W_COUNT], 1);
    completed(c, &child, c->n_args > RESULT ? c->args[RESULT] : NULL);
    return answer_integer(c, 1);
}
