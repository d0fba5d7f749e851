#include "kept.h"

#include "store.h"

long long kept_for(Call *c) {
    Str *kept = queue_key(c, "kept");
    if (!exists(c, kept)) return -1;
    Reply *reply = VM_Call(c->ctx, "PTTL", "s", kept);
    return reply ? VM_CallReplyInteger(reply) : -1;
}

bool is_first(const Str *attempts, const Str *held) {
    return held && is(attempts, "1");
}

void note_kept(Call *c, long long stands, long long lasts) {
    if (stands < lasts) string_write(c, queue_key(c, "kept"), str_of(c, TEXT("1")), c->now + lasts);
}
