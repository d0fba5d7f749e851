#include "receipt.h"

#include <stdio.h>

#include "store.h"

double receipt_number(Call *c, const Str *receipt) {
    Text text = text_of(receipt);
    size_t digits = 0;
    while (digits < text.len && text.at[digits] >= '0' && text.at[digits] <= '9') digits++;
    return digits ? number_of(str_of(c, (Text){text.at, digits}), 0) : 0;
}

static char *append(char *end, Text text) {
    memcpy(end, text.at, text.len);
    return end + text.len;
}

void receipt_write(Claim *claim, Str *key, double number, long long lease_ms) {
    char first[40];
    int len = snprintf(first, sizeof first, "%.14g ", number);
    size_t size = (size_t)len + text_of(claim->random).len;
    for (size_t i = 0; i < claim->count; i++) {
        size += text_of(claim->jobs[i].id).len + text_of(claim->jobs[i].token).len + 2;
    }
    char *start = pool(claim->c, size, 1), *end = start;
    end = append(end, (Text){first, (size_t)len});
    end = append(end, text_of(claim->random));
    for (size_t i = 0; i < claim->count; i++) {
        end = append(end, TEXT(" "));
        end = append(end, text_of(claim->jobs[i].id));
        end = append(end, TEXT(" "));
        end = append(end, text_of(claim->jobs[i].token));
    }
    Str *text = VM_CreateString(claim->c->ctx, start, (size_t)(end - start));
    string_write(claim->c, key, text, claim->c->now + lease_ms);
}

void reply_start(Call *c, double number, const char *why, Str *random) {
    VM_ReplyWithArray(c->ctx, 6);
    VM_ReplyWithLongLong(c->ctx, cut_integer(number));
    VM_ReplyWithStringBuffer(c->ctx, why, strlen(why));
    VM_ReplyWithString(c->ctx, random);
}

void reply_jobs(Call *c, const Taken *jobs, size_t n) {
    VM_ReplyWithArray(c->ctx, (long)(6 * n));
    for (size_t i = 0; i < n; i++) {
        VM_ReplyWithString(c->ctx, jobs[i].id);
        if (jobs[i].payload) {
            VM_ReplyWithString(c->ctx, jobs[i].payload);
        } else {
            VM_ReplyWithNull(c->ctx);
        }
        VM_ReplyWithString(c->ctx, jobs[i].token);
        VM_ReplyWithString(c->ctx, jobs[i].group);
        VM_ReplyWithString(c->ctx, jobs[i].failures);
        VM_ReplyWithLongLong(c->ctx, cut_integer(jobs[i].crashes));
    }
}

void reply_kin(Call *c, const Taken *jobs, size_t n) {
    long kin = 0;
    for (size_t i = 0; i < n; i++) kin += jobs[i].is_child;
    VM_ReplyWithArray(c->ctx, kin);
    for (size_t i = 0; i < n; i++) {
        if (jobs[i].is_child) VM_ReplyWithString(c->ctx, jobs[i].id);
    }
}

/* The next word; `at` is NULL behind the last one. */
static Text next_word(Text *rest) {
    while (rest->len && *rest->at == ' ') rest->at++, rest->len--;
    Text word = {rest->len ? rest->at : NULL, 0};
    while (rest->len && *rest->at != ' ') rest->at++, rest->len--, word.len++;
    return word;
}

/* Whether a job is in hand as the receipt says: active, with attempts and `held` as written then. One that was disowned has
 * no `held` and is left alone. */
static bool read_in_hand(Call *c, Str *active, Text random, Taken *job) {
    static const int FIELDS[] = {W_ATTEMPTS, W_HELD, W_PAYLOAD, W_GROUP, W_FAILURES, W_CRASHES, W_PARENT};
    Str *row[7];
    double lease;
    row_read(c, row_key(c, job->id), FIELDS, row, 7);
    Text held[] = {text_of(job->token), TEXT(":"), random};
    if (!row[0] || !same(text_of(row[0]), text_of(job->token))) return false;
    if (!row[1] || !same(text_of(row[1]), text_of(joined(c, held, 3)))) return false;
    if (!zset_score(c, active, job->id, &lease)) return false;
    job->payload = row[2];
    job->group = row[3] ? row[3] : word[W_EMPTY];
    job->failures = row[4] ? row[4] : word[W_ZERO];
    job->crashes = counted_crashes(c, row[5], job->token);
    job->is_child = row[6];
    return true;
}

int replay(Call *c, Str *active, Str *key, const Str *receipt, long long lease_ms) {
    Text rest = text_of(receipt);
    Taken *jobs = pool(c, rest.len / 4 + 1, sizeof *jobs);
    size_t n = 0;
    next_word(&rest);
    Text random = next_word(&rest);
    for (;;) {
        Text id = next_word(&rest), token = next_word(&rest);
        if (!token.at) break;
        jobs[n] = (Taken){.id = str_of(c, id), .token = str_of(c, token)};
        n += read_in_hand(c, active, random, &jobs[n]);
    }
    if (!may_write(c)) return refused(c);
    /* The receipt lives on with the leases, since this reply may be lost too. */
    VM_Call(c->ctx, "PEXPIRE", "!slc", key, lease_ms, "GT");
    for (size_t i = 0; i < n; i++) zset_raise(c, active, (double)(c->now + lease_ms), jobs[i].id);
    reply_start(c, receipt_number(c, receipt), "replayed", str_of(c, random));
    reply_jobs(c, jobs, n);
    VM_ReplyWithArray(c->ctx, 0);
    reply_kin(c, jobs, n);
    return API_OK;
}
