/* One call of a command: its shape checked, its phases kept apart, its answer given.
 *
 * A handler reads, passes may_write once, and then writes. Reads note keys of a wrong type instead of failing, and derived
 * keys; may_write and every answer look at the notes, so a refusal is always given before the first write. All memory of a
 * call (strings, open keys, replies, pool) is freed by the server when the handler returns. */
#ifndef EMQ_COMMON_H
#define EMQ_COMMON_H

#include <stdbool.h>
#include <string.h>

#include "api.h"
#include "words.h"

/* Borrowed bytes: valid as long as the string that they are of. `at` is NULL for "there is none". */
typedef struct {
    const char *at;
    size_t len;
} Text;

#define TEXT(literal) ((Text){literal, sizeof literal - 1})

/* A list that grows, of strings that live as long as the call. */
typedef struct {
    Str **at;
    size_t n, room;
} List;

typedef struct Call Call;

/* A command. `keys` are the names that its keys must have behind `emq:{q}:`, where `%0` stands for the first argument, `%1`
 * for the second; NULL ends them. More keys than these are taken where `more_keys` says so (they are looked at for their
 * queue only). `args` counts what follows the keys, at least so many where `more_args` says so; `base_arg` is the place of
 * the argument that must be `emq:{q}:`, or -1. */
typedef struct {
    const char *name;
    const char *flags;
    const char *keys[8];
    int args;
    int base_arg;
    bool more_keys, more_args;
    int (*body)(Call *c);
} Verb;

struct Call {
    Ctx *ctx;
    const Verb *verb;
    Str **keys, **args;
    int n_keys, n_args;
    Text base;       /* emq:{q}: */
    long long now;   /* ms, the server's clock; the only one that prices a lease or a delay */
    bool wrong_type; /* a key that was read is of another type */
    bool passed;     /* may_write has said yes */
    bool cluster;    /* derived keys are noted in `derived`, see may_write */
    List derived;
    char *arena; /* what is left of the memory that the call began with */
    size_t arena_left;
};

/* Checks the shape of the call and runs the verb's body. */
int run(Ctx *ctx, Str **argv, int argc, const Verb *verb);

/* The end of the reading phase: false where a key was of a wrong type, or is not at this node of a cluster (its slot is
 * being moved); the caller then returns refused(c). */
bool may_write(Call *c);
int refused(Call *c);

/* Answers. Each looks at the notes of the reading phase first. */
int answer_integer(Call *c, long long value);
int answer_string(Call *c, Text value);
int refuse(Call *c, const char *text);
/* `ERR EMQ.<NAME> <what>` */
int refuse_shape(Call *c, const char *what);
/* `EMQSTATE promote lane not native` and its kind: the verb's own word comes from the caller. */

/* Strings. */
Text text_of(const Str *string);
bool same(Text a, Text b);
bool is(const Str *string, const char *literal);
bool starts_with(Text text, Text start);
Str *str_of(Call *c, Text text);
Str *joined(Call *c, const Text *parts, size_t n);
Str *integer_str(Call *c, long long value);
Str *number_str(Call *c, double value);
/* emq:{q}:<kind><name><tail> */
Str *key_of(Call *c, const char *kind, Text name, const char *tail);
Str *queue_key(Call *c, const char *suffix);
Str *row_key(Call *c, const Str *id);
/* A row's neighbour: <row>:<part>. */
Str *part_key(Call *c, const Str *row, const char *part);

/* Numbers. Absent or no number: `otherwise`. */
double number_of(const Str *string, double otherwise);
/* As an integer reply has it: cut, and bounded by what a double tells apart. */
long long cut_integer(double value);
/* A decimal integer of 0 or more, as the due times and batches of the commands are. */
bool whole(const Str *string, long long *value);

void list_add(Call *c, List *list, Str *string);
void *pool(Call *c, size_t count, size_t size);

/* The class check of ids: the first three letters. */
bool is_job(const Str *id);
#define NOT_A_JOB "EMQKIND job id must be JOB-namespaced"

#endif
