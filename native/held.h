/* Fencing: the twin of lua/include/held.lua. `held` on the wire is `token:random`; a plain client sends the token alone. */
#ifndef EMQ_HELD_H
#define EMQ_HELD_H

#include "common.h"

Text token_of(const Str *held);

/* The answer that an earlier verdict recorded for this very token (row field `settled` = `token:answer`); `at` is NULL where
 * there is none. */
Text settled_answer(const Str *settled, Text token);

/* Whether the caller's claim is not the row's: another token, or another claim under the same token (an id that was removed
 * or completed and enqueued again starts at token 1 again). */
bool is_stale(const Str *attempts, const Str *row_held, const Str *held);

#endif
