/* Strings that are used in every call, made once when the module is loaded: field names, states, numbers. */
#ifndef EMQ_WORDS_H
#define EMQ_WORDS_H

#include "api.h"

/* W(identifier, text) */
#define WORDS(W) \
    W(STATE, "state") \
    W(ATTEMPTS, "attempts") \
    W(PAYLOAD, "payload") \
    W(GROUP, "group") \
    W(HELD, "held") \
    W(SETTLED, "settled") \
    W(CRASHES, "crashes") \
    W(FAILURES, "failures") \
    W(STALLED, "stalled") \
    W(LAST_ERROR, "last_error") \
    W(CANCEL, "cancel") \
    W(EXPIRES_AT, "expires_at") \
    W(DEDUP, "dedup") \
    W(TRACE, "trace") \
    W(PARENT, "parent") \
    W(PARENT_QUEUE, "parent_queue") \
    W(PARENT_POLICY, "parent_policy") \
    W(COUNT, "count") \
    W(CONCURRENCY, "concurrency") \
    W(MAX, "max") \
    W(WINDOW_MS, "window_ms") \
    W(FLAT_TURN, "flat_turn") \
    W(LANE_TURN, "lane_turn") \
    W(PAUSED, "paused") \
    W(PENDING, "pending") \
    W(SCHEDULED, "scheduled") \
    W(ACTIVE, "active") \
    W(DEAD, "dead") \
    W(ZERO, "0") \
    W(ONE, "1") \
    W(EMPTY, "")

#define W(name, text) W_##name,
enum { WORDS(W) W_TOTAL };
#undef W

extern Str *word[W_TOTAL];

void words_make(void);
void words_free(void);

#endif
