#include "held.h"

Text token_of(const Str *held) {
    Text text = text_of(held);
    const char *colon = memchr(text.at, ':', text.len);
    return colon ? (Text){text.at, (size_t)(colon - text.at)} : text;
}

Text settled_answer(const Str *settled, Text token) {
    Text text = text_of(settled);
    if (text.len <= token.len || text.at[token.len] != ':' || !starts_with(text, token)) return (Text){NULL, 0};
    return (Text){text.at + token.len + 1, text.len - token.len - 1};
}

bool is_stale(const Str *attempts, const Str *row_held, const Str *held) {
    Text token = token_of(held), whole_held = text_of(held);
    if (!same(text_of(attempts), token)) return true;
    return row_held && whole_held.len != token.len && !same(text_of(row_held), whole_held);
}
