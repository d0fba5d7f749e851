/* EMQ.ADMIT.MANY, EMQ.ADMIT.TRACED: jobs of any kind, flat, to a lane or scheduled; each may have a dedup key and an expiry.
 * Traced ones say on their row which span of a producer admitted them. */
#include <math.h>

#include "commands.h"
#include "lanes.h"
#include "store.h"
#include "table.h"

enum { WORDS_PER_JOB = 8 };
/* An expiry has to fit into the server's 64 bits of milliseconds. */
static const long long LONGEST_TTL_MS = 1LL << 53;
enum { NOT_JOB = -1, DUPLICATE = 0, ADMITTED = 1, PARKED = 2 };

typedef struct {
    Str *id, *payload, *group, *dedup, *row, *parked; /* parked: the key of the dedup key */
    Str *first;                                       /* who has the dedup key: the verdict PARKED */
    long long ttl_ms;                                 /* 0: for ever */
    double expires, score;                            /* NAN: never; not scheduled */
    int verdict;
} Admission;

/* The script takes any number here, and fails in its middle where that is no time. */
static const char BAD_TTL[] = "dedup_ttl_ms must be a whole number above 0";

static bool empty(const Str *string) {
    return text_of(string).len == 0;
}

static double priced(const Call *c, bool relative, double ms) {
    return relative ? (double)c->now + ms : ms;
}

static bool are_letters(Text text) {
    for (size_t i = 0; i < text.len; i++) {
        char letter = (char)(text.at[i] | 0x20);
        if (letter < 'a' || letter > 'z') return false;
    }
    return text.len > 0;
}

static bool are_digits(Text text) {
    for (size_t i = 0; i < text.len; i++) {
        if (text.at[i] < '0' || text.at[i] > '9') return false;
    }
    return text.len > 0;
}

/* `in:ms` or `at:ms`, any other word being `at`; false where it is neither. */
static bool read_expiry(Call *c, const Str *text, double *at) {
    Text t = text_of(text);
    const char *colon = memchr(t.at, ':', t.len);
    if (!colon) return false;
    Text mode = {t.at, (size_t)(colon - t.at)}, ms = {colon + 1, t.len - (size_t)(colon - t.at) - 1};
    size_t sign = ms.len && *ms.at == '-';
    if (!are_letters(mode) || !are_digits((Text){ms.at + sign, ms.len - sign})) return false;
    *at = priced(c, same(mode, TEXT("in")), number_of(str_of(c, ms), NAN));
    return true;
}

/* NULL when the job's words are well-formed, else what is wrong. */
static const char *parse(Call *c, Str **words, Admission *job) {
    *job = (Admission){.id = words[0], .payload = words[1], .row = row_key(c, words[0]), .expires = NAN, .score = NAN};
    if (!empty(words[2])) job->group = words[2];
    if (!empty(words[5])) {
        job->dedup = words[5];
        job->parked = key_of(c, "de:", text_of(words[5]), "");
        if (!empty(words[6]) && (!whole(words[6], &job->ttl_ms) || job->ttl_ms < 1 || job->ttl_ms > LONGEST_TTL_MS)) {
            return BAD_TTL;
        }
    }
    if (!empty(words[7]) && !read_expiry(c, words[7], &job->expires)) return "ERR admit expires must be in:ms or at:ms";
    if (empty(words[3])) return NULL;
    job->score = priced(c, is(words[3], "in"), number_of(words[4], NAN));
    return isnan(job->score) ? "ERR admit value must be a number of milliseconds" : NULL;
}

/* Reads whatever the job may need, and decides what its id alone says. */
static void look_at(Call *c, Admission *job, Table *seen, Table *lanes) {
    job->verdict = ADMITTED;
    if (exists(c, job->row) | table_mark(c, seen, job->id)) job->verdict = DUPLICATE;
    if (!is_job(job->id)) job->verdict = NOT_JOB;
    if (job->parked) {
        Str *first = string_read(c, job->parked);
        if (first) exists(c, row_key(c, first));
    }
    if (job->group && !table_mark(c, lanes, job->group)) touch_lane(c, job->group);
}

/* An id whose row is gone (completed by somebody who knows no dedup key) does not block: the next takes the key over. */
static void ask_for_key(Call *c, Admission *job) {
    Str *first = job->verdict == ADMITTED && job->parked ? string_read(c, job->parked) : NULL;
    if (!first || same(text_of(first), text_of(job->id)) || !exists(c, row_key(c, first))) return;
    job->first = first;
    job->verdict = PARKED;
}

static void write_admission(Call *c, const Admission *job, Str *trace) {
    Pair fields[7] = {
        {W_STATE, word[isnan(job->score) ? W_PENDING : W_SCHEDULED]}, {W_ATTEMPTS, word[W_ZERO]}, {W_PAYLOAD, job->payload}};
    size_t n = 3;
    if (job->group) fields[n++] = (Pair){W_GROUP, job->group};
    if (!isnan(job->expires)) fields[n++] = (Pair){W_EXPIRES_AT, number_str(c, job->expires)};
    if (trace) fields[n++] = (Pair){W_TRACE, trace};
    if (job->parked) fields[n++] = (Pair){W_DEDUP, job->dedup};
    row_write(c, job->row, fields, n);
    if (job->parked) string_write(c, job->parked, job->id, job->ttl_ms ? c->now + job->ttl_ms : 0);
}

static void place(Call *c, const Admission *job, List *flat) {
    if (!isnan(job->score)) {
        zset_add(c, c->keys[1], job->score, job->id);
    } else if (job->group) {
        zset_add(c, lane_key(c, job->group), 0, job->id);
    } else {
        list_add(c, flat, job->id);
    }
}

static void reply_verdict(Call *c, const Admission *job) {
    if (job->verdict == PARKED) {
        VM_ReplyWithString(c->ctx, job->first);
    } else {
        VM_ReplyWithLongLong(c->ctx, job->verdict);
    }
}

/* The jobs that are described from the argument `from` on; `trace` is NULL for none. */
static int admit(Call *c, int from, Str *trace) {
    if ((c->n_args - from) % WORDS_PER_JOB) return refuse_shape(c, "jobs must be of eight arguments each");
    int n = (c->n_args - from) / WORDS_PER_JOB;
    Admission *jobs = pool(c, (size_t)n, sizeof *jobs);
    for (int i = 0; i < n; i++) {
        const char *wrong = parse(c, c->args + from + WORDS_PER_JOB * i, &jobs[i]);
        if (wrong) return wrong == BAD_TTL ? refuse_shape(c, wrong) : VM_ReplyWithError(c->ctx, wrong);
    }
    Table seen = {0}, lanes = {0};
    for (int i = 0; i < n; i++) look_at(c, &jobs[i], &seen, &lanes);
    for (int i = 0; i < 2; i++) touch(c, c->keys[i], TYPE_ZSET);
    touch(c, queue_key(c, "ready"), TYPE_LIST);
    if (!may_write(c)) return refused(c);
    List flat = {0};
    VM_ReplyWithArray(c->ctx, n);
    for (int i = 0; i < n; i++) {
        ask_for_key(c, &jobs[i]);
        reply_verdict(c, &jobs[i]);
        if (jobs[i].verdict != ADMITTED) continue;
        write_admission(c, &jobs[i], trace);
        place(c, &jobs[i], &flat);
    }
    zset_add_all(c, c->keys[0], 0, &flat);
    wake_flat(c, flat.n);
    for (int i = 0; i < n; i++) {
        if (jobs[i].verdict == ADMITTED && isnan(jobs[i].score) && jobs[i].group) offer(c, jobs[i].group, false);
    }
    return API_OK;
}

/* KEYS pending, schedule; ARGV base, then for each job id, payload, group, mode, value, dedup key, dedup_ttl_ms, expires.
 * Replies a verdict per job: 1, 0, -1, or the id that has the dedup key. */
int admit_many(Call *c) {
    return admit(c, 1, NULL);
}

/* KEYS pending, schedule; ARGV base, trace, then the jobs. Replies as admit_many. */
int admit_traced(Call *c) {
    return admit(c, 2, c->args[1]);
}
