/* The native twins of the scripts in lua/, as a module: the table of commands, and their registration.
 *
 * Flags: every command writes. `deny-oom` stands where the script's first write is one that a server at its maxmemory
 * refuses (admissions, claims); what ends, returns or keeps a job is served there too, as by the scripts. */
#include "api.h"
#include "commands.h"
#include "common.h"

/* Of keys, arguments and replies: what is changed here is changed in echomq_worker/twins.py, which reads it as `since`. */
#define MODULE_VERSION 1
#define TEXT_OF(value) #value
#define VERSION_TEXT(value) TEXT_OF(value)

/* V(function, name, flags, keys, how many arguments, which of them is the base or -1, more keys, more arguments) */
#define KEYS(...) {__VA_ARGS__, NULL}
#define COMMANDS(V) \
    V(schedule, "EMQ.SCHEDULE", "write deny-oom fast", KEYS("job:%0", "schedule"), 4, -1, false, false) \
    V(enqueue, "EMQ.ENQUEUE", "write deny-oom fast", KEYS("job:%0", "pending"), 2, -1, false, false) \
    V(enqueue_many, "EMQ.ENQUEUE.MANY", "write deny-oom", KEYS("pending"), 1, 0, false, true) \
    V(admit_many, "EMQ.ADMIT.MANY", "write deny-oom", KEYS("pending", "schedule"), 1, 0, false, true) \
    V(admit_traced, "EMQ.ADMIT.TRACED", "write deny-oom", KEYS("pending", "schedule"), 2, 0, false, true) \
    V(lane_enqueue, "EMQ.LANE.ENQUEUE", "write deny-oom", \
      KEYS("job:%0", "g:%2:pending", "ring", "paused", "glimit", "gactive", "wake"), 3, -1, false, false) \
    V(claim, "EMQ.CLAIM", "write deny-oom fast", KEYS("pending", "active"), 2, -1, false, false) \
    V(claim_batch, "EMQ.CLAIM.BATCH", "write deny-oom", KEYS("pending", "active"), 3, -1, false, false) \
    V(lane_claim, "EMQ.LANE.CLAIM", "write deny-oom", KEYS("ring", "active"), 2, 0, false, false) \
    V(lane_claim_weighted, "EMQ.LANE.CLAIM.WEIGHTED", "write deny-oom", KEYS("ring", "active"), 2, 0, false, false) \
    V(claim_many, "EMQ.CLAIM.MANY", "write", KEYS("pending", "active", "ring", "meta"), 7, 0, true, false) \
    V(settle, "EMQ.SETTLE", "write", KEYS("active", "pending", "schedule", "dead"), 1, 0, false, true) \
    V(complete, "EMQ.COMPLETE", "write", KEYS("active", "job:%0"), 3, 2, true, true) \
    V(keep, "EMQ.KEEP", "write", KEYS("active"), 2, 0, false, true) \
    V(disown, "EMQ.DISOWN", "write", KEYS("active"), 1, 0, false, true) \
    V(look, "EMQ.LOOK", "readonly fast", KEYS("pending", "active", "ring", "meta"), 2, 0, false, false) \
    V(reschedule, "EMQ.RESCHEDULE", "write fast", KEYS("job:%0", "schedule"), 3, -1, false, false) \
    V(promote, "EMQ.PROMOTE", "write", KEYS("schedule", "pending"), 2, 0, false, false) \
    V(reap, "EMQ.REAP", "write", KEYS("active", "pending"), 1, 0, false, false) \
    V(stalled_check, "EMQ.STALLED.CHECK", "write", KEYS("active", "pending", "dead"), 3, 0, false, false) \
    V(delay, "EMQ.DELAY", "write", KEYS("job:%0", "active", "schedule"), 4, -1, false, false) \
    V(extend_lock, "EMQ.EXTEND", "write fast", KEYS("active", "job:%0"), 3, -1, false, false) \
    V(requeue, "EMQ.REQUEUE", "write", KEYS("job:%0", "active", "pending"), 2, -1, false, false) \
    V(retry, "EMQ.RETRY", "write", KEYS("active", "schedule", "dead", "job:%0"), 6, 5, true, true) \
    V(reprocess, "EMQ.REPROCESS", "write", KEYS("job:%0", "dead", "pending"), 1, -1, false, true)

/* Which arguments are keys, told to whoever asks: a cluster, which looks at the table of keys below for nothing but ACL rules,
 * would let a command run on any node. A number that is none is refused when the command runs. */
static int tell_keys(Ctx *ctx, Str **argv, int argc) {
    long long n;
    if (argc < 2 || VM_StringToLongLong(argv[1], &n) != API_OK || n < 1 || n > argc - 2) return API_OK;
    for (int i = 0; i < (int)n; i++) VM_KeyAtPosWithFlags(ctx, 2 + i, SPEC_RW | SPEC_ACCESS | SPEC_UPDATE);
    return API_OK;
}

/* The server calls a function without data of its own, so each command has one that adds its row of the table. */
#define V(function, name, flags, keys, args, base, more_keys, more_args) \
    static const Verb verb_##function = {name, flags " getkeys-api", keys, args, base, more_keys, more_args, function}; \
    static int handle_##function(Ctx *ctx, Str **argv, int argc) { \
        return VM_IsKeysPositionRequest(ctx) ? tell_keys(ctx, argv, argc) : run(ctx, argv, argc, &verb_##function); \
    }
COMMANDS(V)
#undef V

static const InfoVersion INFO_VERSION = {1, 2 * sizeof(char *), sizeof(KeySpec), 9 * sizeof(char *)};

/* The fewest arguments, negative for "at least", as the server checks them before it calls. */
static int arity_of(const Verb *verb) {
    int n = 2 + verb->args;
    for (int i = 0; verb->keys[i]; i++) n++;
    return verb->more_keys || verb->more_args ? -n : n;
}

static int add(Ctx *ctx, const Verb *verb, Handler handler) {
    if (VM_CreateCommand(ctx, verb->name, handler, verb->flags, 0, 0, 0) != API_OK) return API_ERR;
    KeySpec specs[] = {
        {
            .notes = "keys that are derived from these begin with the same emq:{q}:",
            .flags = SPEC_RW | SPEC_ACCESS | SPEC_UPDATE,
            .begin_search = SEARCH_INDEX,
            .bs.index.pos = 1,
            .find_keys = FIND_KEYNUM,
            .fk.keynum = {.keynumidx = 0, .firstkey = 1, .keystep = 1},
        },
        {0},
    };
    CommandInfo info = {
        .version = &INFO_VERSION, .summary = "A transition of EchoMQ.", .since = VERSION_TEXT(MODULE_VERSION), .arity = arity_of(verb), .key_specs = specs};
    return VM_SetCommandInfo(VM_GetCommand(ctx, verb->name), &info);
}

__attribute__((visibility("default"))) int ValkeyModule_OnLoad(Ctx *ctx, Str **argv, int argc) {
    (void)argv;
    if (argc) return API_ERR;
    if (api_load(ctx, "emq", MODULE_VERSION) != API_OK) return API_ERR;
    words_make();
    int failed = 0;
#define V(function, ...) failed |= add(ctx, &verb_##function, handle_##function) != API_OK;
    COMMANDS(V)
#undef V
    if (failed) words_free();
    return failed ? API_ERR : API_OK;
}

__attribute__((visibility("default"))) int ValkeyModule_OnUnload(Ctx *ctx) {
    (void)ctx;
    words_free();
    return API_OK;
}
