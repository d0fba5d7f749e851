#include "verdicts.h"

#include <math.h>

#include "held.h"
#include "store.h"

/* Words of a verdict: kind, id, held, group, and what its kind adds. */
enum { KIND, ID, HELD, GROUP, DELAY_MS, MAX_ATTEMPTS, ERROR };
enum { VALUE_MS = MAX_ATTEMPTS, FEWEST = GROUP + 1 };

/* How many words a verdict of that kind has, 0 where there is no such kind. */
static int length_of_kind(const Str *kind) {
    static const char KINDS[] = "cvrd";
    static const int LENGTHS[] = {FEWEST, FEWEST + 1, FEWEST + 3, FEWEST + 2};
    Text text = text_of(kind);
    const char *at = text.len == 1 ? strchr(KINDS, *text.at) : NULL;
    return at && *at ? LENGTHS[at - KINDS] : 0;
}

static bool is_number(const Str *string) {
    return !isnan(number_of(string, NAN));
}

static bool read_words(Call *c, Str **words, int left, Verdict *v) {
    int length = length_of_kind(words[KIND]);
    if (!length || length > left) return false;
    *v = (Verdict){.words = words, .kind = *text_of(words[KIND]).at, .id = words[ID], .held = words[HELD]};
    if (v->kind == 'r' && !(is_number(words[DELAY_MS]) && is_number(words[MAX_ATTEMPTS]))) return false;
    if (v->kind == 'd' && !is_number(words[VALUE_MS])) return false;
    v->key = row_key(c, v->id);
    return true;
}

Verdict *parse_verdicts(Call *c, Str **words, int n_words, size_t *n) {
    Verdict *verdicts = pool(c, (size_t)n_words / FEWEST + 1, sizeof *verdicts);
    *n = 0;
    for (int i = 0; i < n_words; i += length_of_kind(words[i])) {
        if (!read_words(c, words + i, n_words - i, &verdicts[*n])) return NULL;
        ++*n;
    }
    return verdicts;
}

void read_verdict_row(Call *c, Verdict *v) {
    Key *open = open_read(c, v->key, TYPE_HASH);
    RowReader reader = row_reader(open);
    Str **row = v->row;
    row[ROW_ATTEMPTS] = row_next(&reader, W_ATTEMPTS);
    row[ROW_HELD] = row_next(&reader, W_HELD);
    row[ROW_STATE] = row_next(&reader, W_STATE);
    row_skip(&reader, W_PAYLOAD);
    row[ROW_GROUP] = row_next(&reader, W_GROUP);
    row[ROW_FAILURES] = row_next(&reader, W_FAILURES);
    row[ROW_SETTLED] = row_next(&reader, W_SETTLED);
    row[ROW_CANCEL] = row_next(&reader, W_CANCEL);
    row[ROW_DEDUP] = row_next(&reader, W_DEDUP);
    row[ROW_PARENT] = row_next(&reader, W_PARENT);
    if (open) VM_CloseKey(open);
}

static bool end_with(Verdict *v, Text answer) {
    v->answer = answer;
    return true;
}

static bool leave_at(Verdict *v, Text answer) {
    v->answer = answer;
    return false;
}

static bool decide_completion(Verdict *v, Text before, bool dead) {
    if (before.at && !(dead && same(before, BURIED))) return leave_at(v, STALE);
    return end_with(v, DONE);
}

static bool decide_delay(Verdict *v, Text before, bool dead) {
    if (same(before, DELAYED)) return leave_at(v, DELAYED);
    if (same(before, BURIED) && v->row[ROW_CANCEL]) return leave_at(v, BURIED);
    if (before.at || dead) return leave_at(v, STALE);
    return end_with(v, v->row[ROW_CANCEL] ? BURIED : DELAYED);
}

static bool decide_retry(Verdict *v, Text before, bool dead) {
    if (before.at) return leave_at(v, same(before, DELAYED) ? STALE : before);
    double failures = number_of(v->row[ROW_FAILURES], 0) + 1;
    bool buried = dead || v->row[ROW_CANCEL] || failures >= number_of(v->words[MAX_ATTEMPTS], 0);
    return end_with(v, buried ? BURIED : RETRIED);
}

bool decide(Verdict *v) {
    Str **row = v->row;
    if (!row[ROW_ATTEMPTS]) return end_with(v, GONE);
    if (is_stale(row[ROW_ATTEMPTS], row[ROW_HELD], v->held)) return leave_at(v, STALE);
    Text before = settled_answer(row[ROW_SETTLED], token_of(v->held));
    bool dead = is(row[ROW_STATE], "dead");
    if (v->kind == 'r') return decide_retry(v, before, dead);
    return v->kind == 'd' ? decide_delay(v, before, dead) : decide_completion(v, before, dead);
}

Str *reason_of(Call *c, const Verdict *v) {
    if (!v->row[ROW_CANCEL]) return v->words[ERROR];
    Text parts[] = {TEXT("cancelled: "), text_of(v->row[ROW_CANCEL])};
    return joined(c, parts, 2);
}
