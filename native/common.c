#include "common.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

static const double EXACT = 9007199254740992.0; /* 2^53 */
enum { ERROR_SIZE = 256, ARENA_SIZE = 32768 };

/* ---- what the checking build does otherwise ---- */

#ifdef EMQ_CHECKED
/* The server's memory is not looked at by AddressSanitizer: pool and strings are blocks of malloc here, of exactly the size that
 * was asked for, until the call is over. */
typedef struct Block {
    struct Block *next;
    void *bytes;
} Block;
static Block *blocks;

static void *block(size_t size) {
    Block *one = malloc(sizeof *one);
    one->bytes = malloc(size);
    one->next = blocks;
    blocks = one;
    return one->bytes;
}

static void free_blocks(void) {
    while (blocks) {
        Block *one = blocks;
        blocks = one->next;
        free(one->bytes);
        free(one);
    }
}

static Text checked(Text text) {
    char *copy = block(text.len);
    if (text.len) memcpy(copy, text.at, text.len);
    return (Text){copy, text.len};
}
#else
static void free_blocks(void) {}

static Text checked(Text text) {
    return text;
}
#endif

/* ---- strings ---- */

Text text_of(const Str *string) {
    Text text = {NULL, 0};
    if (!string) return text;
    text.at = VM_StringPtrLen(string, &text.len);
    return checked(text);
}

bool same(Text a, Text b) {
    return a.len == b.len && (a.len == 0 || memcmp(a.at, b.at, a.len) == 0);
}

bool is(const Str *string, const char *literal) {
    return string && same(text_of(string), (Text){literal, strlen(literal)});
}

bool starts_with(Text text, Text start) {
    return text.len >= start.len && memcmp(text.at, start.at, start.len) == 0;
}

Str *str_of(Call *c, Text text) {
    return VM_CreateString(c->ctx, text.at, text.len);
}

Str *integer_str(Call *c, long long value) {
    return VM_CreateStringFromLongLong(c->ctx, value);
}

/* 17 digits give a double back exactly, as the scripts send theirs. */
Str *number_str(Call *c, double value) {
    char buffer[40];
    int len = snprintf(buffer, sizeof buffer, "%.17g", value);
    return VM_CreateString(c->ctx, buffer, (size_t)len);
}

Str *joined(Call *c, const Text *parts, size_t n) {
    size_t len = 0, at = 0;
    for (size_t i = 0; i < n; i++) len += parts[i].len;
    char local[256];
    char *buffer = len <= sizeof local ? local : pool(c, len, 1);
    for (size_t i = 0; i < n; i++) {
        if (parts[i].len) memcpy(buffer + at, parts[i].at, parts[i].len);
        at += parts[i].len;
    }
    return VM_CreateString(c->ctx, buffer, len);
}

Str *key_of(Call *c, const char *kind, Text name, const char *tail) {
    Text parts[] = {c->base, {kind, strlen(kind)}, name, {tail, strlen(tail)}};
    return joined(c, parts, 4);
}

Str *queue_key(Call *c, const char *suffix) {
    return key_of(c, suffix, TEXT(""), "");
}

Str *row_key(Call *c, const Str *id) {
    return key_of(c, "job:", text_of(id), "");
}

Str *part_key(Call *c, const Str *row, const char *part) {
    Text parts[] = {text_of(row), TEXT(":"), {part, strlen(part)}};
    return joined(c, parts, 3);
}

/* ---- numbers ---- */

double number_of(const Str *string, double otherwise) {
    double value;
    if (!string || VM_StringToDouble(string, &value) != API_OK || isnan(value)) return otherwise;
    return value;
}

long long cut_integer(double value) {
    if (value >= EXACT) return (long long)EXACT;
    return value <= -EXACT ? -(long long)EXACT : (long long)value;
}

bool whole(const Str *string, long long *value) {
    return VM_StringToLongLong(string, value) == API_OK && *value >= 0;
}

bool is_job(const Str *id) {
    return starts_with(text_of(id), TEXT("JOB"));
}

/* ---- memory ---- */

#ifdef EMQ_CHECKED
void *pool(Call *c, size_t count, size_t size) {
    (void)c;
    return block(count * size);
}
#else
/* The stack's arena first: most calls need no more, and an allocator has to be asked for none of it. */
void *pool(Call *c, size_t count, size_t size) {
    size_t align = _Alignof(max_align_t), bytes = (count * size + align) / align * align;
    if (bytes > c->arena_left) return VM_PoolAlloc(c->ctx, bytes);
    void *found = c->arena;
    c->arena += bytes;
    c->arena_left -= bytes;
    return found;
}
#endif

void list_add(Call *c, List *list, Str *string) {
    if (list->n == list->room) {
        size_t room = list->room ? 2 * list->room : 16;
        Str **at = pool(c, room, sizeof *at);
        if (list->n) memcpy(at, list->at, list->n * sizeof *at);
        list->at = at;
        list->room = room;
    }
    list->at[list->n++] = string;
}

/* ---- answers ---- */

/* In a cluster a key that is derived from the base may have gone ahead to the node that its slot moves to: it would look
 * absent here. The server knows, and says so to a command that names the key. */
static bool all_here(Call *c) {
    if (!c->derived.n) return true;
    Reply *reply = VM_Call(c->ctx, "EXISTS", "v", c->derived.at, c->derived.n);
    return reply && VM_CallReplyType(reply) == REPLY_INTEGER;
}

bool may_write(Call *c) {
    if (!c->passed) c->passed = !c->wrong_type && all_here(c);
    return c->passed;
}

int refused(Call *c) {
    if (c->wrong_type) return VM_ReplyWithError(c->ctx, WRONGTYPE);
    return VM_ReplyWithError(c->ctx, "TRYAGAIN keys of this queue are being moved to another node");
}

int answer_integer(Call *c, long long value) {
    return may_write(c) ? VM_ReplyWithLongLong(c->ctx, value) : refused(c);
}

int answer_string(Call *c, Text value) {
    return may_write(c) ? VM_ReplyWithStringBuffer(c->ctx, value.at, value.len) : refused(c);
}

int refuse(Call *c, const char *text) {
    return may_write(c) ? VM_ReplyWithError(c->ctx, text) : refused(c);
}

int refuse_shape(Call *c, const char *what) {
    char text[ERROR_SIZE];
    snprintf(text, sizeof text, "ERR %s %s", c->verb->name, what);
    return VM_ReplyWithError(c->ctx, text);
}

/* ---- the shape of a call ---- */

/* The next piece of a template: literal bytes, or the argument that `%n` stands for. */
static Text template_piece(const Call *c, const char **at) {
    const char *start = *at;
    if (*start == '%') {
        *at = start + 2;
        return text_of(c->args[start[1] - '0']);
    }
    size_t len = strcspn(start, "%");
    *at = start + len;
    return (Text){start, len};
}

/* Whether `text` ends with what the template says; what stands before it is the base. */
static bool ends_with_template(const Call *c, Text text, const char *template, Text *base) {
    size_t len = 0;
    for (const char *at = template; *at;) len += template_piece(c, &at).len;
    if (text.len < len) return false;
    size_t position = text.len - len;
    *base = (Text){text.at, position};
    for (const char *at = template; *at;) {
        Text piece = template_piece(c, &at);
        if (!same((Text){text.at + position, piece.len}, piece)) return false;
        position += piece.len;
    }
    return true;
}

/* emq:{q}: with a q of at least one byte and no brace in it, so that the hash tag is the queue. */
static bool is_base(Text text) {
    if (text.len < sizeof "emq:{}:" || !starts_with(text, TEXT("emq:{"))) return false;
    if (memcmp(text.at + text.len - 2, "}:", 2) != 0) return false;
    return !memchr(text.at + 5, '}', text.len - 7) && !memchr(text.at + 5, '{', text.len - 7);
}

/* NULL when all keys are named as they must be and belong to one queue, else what is wrong. A key that is derived later
 * begins with this base: who may use the keys of a queue may use it, and in a cluster it is in their slot. */
static const char *check_keys(Call *c) {
    static const char *const WRONG = "keys must be those of one queue, named as in the protocol";
    int named = 0;
    for (; c->verb->keys[named]; named++) {
        Text base;
        if (!ends_with_template(c, text_of(c->keys[named]), c->verb->keys[named], &base)) return WRONG;
        if (named == 0 && !is_base(base)) return WRONG;
        if (named == 0) c->base = base;
        if (!same(base, c->base)) return WRONG;
    }
    for (int i = named; i < c->n_keys; i++) {
        if (!starts_with(text_of(c->keys[i]), c->base)) return WRONG;
    }
    int base_arg = c->verb->base_arg;
    if (base_arg >= 0 && !same(text_of(c->args[base_arg]), c->base)) return "base must be the emq:{q}: of its keys";
    return NULL;
}

static int named_keys(const Verb *verb) {
    int n = 0;
    while (verb->keys[n]) n++;
    return n;
}

/* Splits argv; false where the number of keys or of arguments is not the verb's. */
static bool split(Call *c, Str **argv, int argc) {
    long long n;
    int named = named_keys(c->verb);
    if (!whole(argv[1], &n) || n < named || n > argc - 2) return false;
    if (n > named && !c->verb->more_keys) return false;
    c->keys = argv + 2;
    c->n_keys = (int)n;
    c->args = argv + 2 + n;
    c->n_args = argc - 2 - (int)n;
    return c->n_args >= c->verb->args && (c->verb->more_args || c->n_args == c->verb->args);
}

static int served(Call *c, Str **argv, int argc) {
    if (!split(c, argv, argc)) return refuse_shape(c, "wrong number of keys");
    const char *wrong = check_keys(c);
    if (wrong) return refuse_shape(c, wrong);
    return c->verb->body(c);
}

int run(Ctx *ctx, Str **argv, int argc, const Verb *verb) {
    VM_AutoMemory(ctx);
    _Alignas(max_align_t) char arena[ARENA_SIZE];
    Call c = {.ctx = ctx, .verb = verb, .now = VM_Milliseconds(), .arena = arena, .arena_left = sizeof arena};
    c.cluster = VM_GetContextFlags(ctx) & CONTEXT_CLUSTER;
    int done = served(&c, argv, argc);
    free_blocks();
    return done;
}
