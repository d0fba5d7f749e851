/* The verdicts of one EMQ.SETTLE: the twin of lua/include/verdicts.lua. Parsed and read first, each then decided on its row.
 */
#ifndef EMQ_VERDICTS_H
#define EMQ_VERDICTS_H

#include "common.h"
#include "flow.h"

/* What of a row a verdict needs. */
enum { ROW_ATTEMPTS, ROW_HELD, ROW_SETTLED, ROW_STATE, ROW_FAILURES, ROW_GROUP, ROW_CANCEL, ROW_DEDUP, ROW_PARENT, ROW_FIELDS };

/* A lane that verdicts concern: what is in flight, and what they make of it. */
typedef struct {
    Str *group;
    double busy, limit;
    size_t freed;
    List left;
} Lane;

/* One verdict: its words in ARGV, its row, and where its id stands. */
typedef struct {
    Str **words;
    char kind;
    Str *id, *held, *key;
    Str *row[ROW_FIELDS];
    Lane *lane; /* NULL for a flat job */
    bool leased, stands, has_kin, tells;
    Child child;
    Text answer;
} Verdict;

#define DONE TEXT("done")
#define GONE TEXT("gone")
#define STALE TEXT("stale")
#define RETRIED TEXT("scheduled")
#define BURIED TEXT("dead")
#define DELAYED TEXT("delayed")

/* NULL where the words are not well-formed: then nothing is written. */
Verdict *parse_verdicts(Call *c, Str **words, int n_words, size_t *n);

void read_verdict_row(Call *c, Verdict *v);

/* Gives the verdict its answer; whether that ends the claim (takes the id out of every set). A row that is gone is cleaned
 * from active all the same. A dead row takes only complete: a late retry counts its failure, nothing else moves. A job that
 * was cancelled is dead instead of retried or delayed. */
bool decide(Verdict *v);

/* Why the job of a verdict is dead. */
Str *reason_of(Call *c, const Verdict *v);

#endif
