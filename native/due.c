#include "due.h"

const char *due_at(const Call *c, const Str *mode, const Str *due, double *score) {
    bool later = is(mode, "in");
    long long value;
    if (!later && !is(mode, "at")) return "mode must be in or at";
    if (!whole(due, &value)) return "due must be a non-negative integer";
    *score = (double)value + (later ? (double)c->now : 0);
    return NULL;
}
