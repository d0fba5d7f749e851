#include "words.h"

Str *word[W_TOTAL];

void words_make(void) {
#define W(name, text) word[W_##name] = VM_CreateString(NULL, text, sizeof text - 1);
    WORDS(W)
#undef W
}

void words_free(void) {
    for (int i = 0; i < W_TOTAL; i++) VM_FreeString(NULL, word[i]);
}
