/* What this module uses of the server's module API, declared by hand so that no header package is needed to build it.
 *
 * The server hands OnLoad a context whose first word is a function that looks API functions up by name; api_load fills the
 * table below with it. Source: the module API of Valkey 8 (names `ValkeyModule_*`), which later servers keep. */
#ifndef EMQ_API_H
#define EMQ_API_H

#include <stddef.h>
#include <stdint.h>

typedef struct Ctx Ctx;     /* a call's context */
typedef struct Str Str;     /* a string object of the server */
typedef struct Key Key;     /* an open key */
typedef struct Reply Reply; /* what a command answered that was called from here */
typedef struct Command Command;
typedef int (*Handler)(Ctx *ctx, Str **argv, int argc);

enum { API_OK = 0, API_ERR = 1, API_VERSION = 1 };
enum { KEY_READ = 1, KEY_WRITE = 2 };
enum { TYPE_NONE = 0, TYPE_STRING = 1, TYPE_LIST = 2, TYPE_HASH = 3, TYPE_SET = 4, TYPE_ZSET = 5 };
enum { REPLY_STRING = 0, REPLY_ERROR = 1, REPLY_INTEGER = 2, REPLY_ARRAY = 3, REPLY_NULL = 4 };
enum { LIST_HEAD = 0, LIST_TAIL = 1 };
enum { ZADD_XX = 1 << 0, ZADD_GT = 1 << 5 };
enum { CONTEXT_CLUSTER = 1 << 5 };
enum { NOTIFY_GENERIC = 1 << 2, NOTIFY_STRING = 1 << 3, NOTIFY_LIST = 1 << 4, NOTIFY_HASH = 1 << 6, NOTIFY_ZSET = 1 << 7 };

/* Flag of HashGet: asks whether the field is there, not for its value. */
enum { HASH_EXISTS = 1 << 3 };
/* As a value for HashSet: the field is deleted. */
#define FIELD_DELETE ((Str *)(intptr_t)1)
#define WRONGTYPE "WRONGTYPE Operation against a key holding the wrong kind of value"

/* How the server finds the keys of a call: the argument behind the name says how many there are. */
enum { SEARCH_INDEX = 2, FIND_KEYNUM = 3 };
enum { SPEC_RW = 1 << 1, SPEC_ACCESS = 1 << 4, SPEC_UPDATE = 1 << 5, SPEC_INSERT = 1 << 6, SPEC_DELETE = 1 << 7 };

typedef struct {
    const char *notes;
    uint64_t flags;
    int begin_search;
    union {
        struct {
            int pos;
        } index;
        struct {
            const char *keyword;
            int startfrom;
        } keyword;
    } bs;
    int find_keys;
    union {
        struct {
            int lastkey, keystep, limit;
        } range;
        struct {
            int keynumidx, firstkey, keystep;
        } keynum;
    } fk;
} KeySpec;

typedef struct {
    int version;
    size_t sizeof_history, sizeof_keyspec, sizeof_arg;
} InfoVersion;

typedef struct {
    const InfoVersion *version;
    const char *summary, *complexity, *since;
    void *history;
    const char *tips;
    int arity;
    KeySpec *key_specs;
    void *args;
} CommandInfo;

/* F(result, name, parameters): every function that is used. */
#define API_FUNCTIONS(F) \
    F(void, SetModuleAttribs, (Ctx * ctx, const char *name, int version, int api)) \
    F(int, IsModuleNameBusy, (const char *name)) \
    F(int, CreateCommand, (Ctx * ctx, const char *name, Handler handler, const char *flags, int first, int last, int step)) \
    F(Command *, GetCommand, (Ctx * ctx, const char *name)) \
    F(int, IsKeysPositionRequest, (Ctx * ctx)) \
    F(void, KeyAtPosWithFlags, (Ctx * ctx, int at, int flags)) \
    F(int, SetCommandInfo, (Command * command, const CommandInfo *info)) \
    F(void, AutoMemory, (Ctx * ctx)) \
    F(void *, PoolAlloc, (Ctx * ctx, size_t bytes)) \
    F(int, GetContextFlags, (Ctx * ctx)) \
    F(long long, Milliseconds, (void)) \
    F(Str *, CreateString, (Ctx * ctx, const char *at, size_t len)) \
    F(Str *, CreateStringFromLongLong, (Ctx * ctx, long long value)) \
    F(void, FreeString, (Ctx * ctx, Str *string)) \
    F(const char *, StringPtrLen, (const Str *string, size_t *len)) \
    F(int, StringToLongLong, (const Str *string, long long *value)) \
    F(int, StringToDouble, (const Str *string, double *value)) \
    F(int, KeyExists, (Ctx * ctx, Str *name)) \
    F(Key *, OpenKey, (Ctx * ctx, Str *name, int mode)) \
    F(void, CloseKey, (Key * key)) \
    F(int, KeyType, (Key * key)) \
    F(size_t, ValueLength, (Key * key)) \
    F(int, DeleteKey, (Key * key)) \
    F(int, UnlinkKey, (Key * key)) \
    F(char *, StringDMA, (Key * key, size_t *len, int mode)) \
    F(int, StringSet, (Key * key, Str *value)) \
    F(int, SetAbsExpire, (Key * key, long long at_ms)) \
    F(int, ZsetAdd, (Key * key, double score, Str *member, int *flags)) \
    F(int, ZsetScore, (Key * key, Str *member, double *score)) \
    F(int, ZsetRem, (Key * key, Str *member, int *deleted)) \
    F(int, ZsetFirstInScoreRange, (Key * key, double min, double max, int minex, int maxex)) \
    F(Str *, ZsetRangeCurrentElement, (Key * key, double *score)) \
    F(int, ZsetRangeNext, (Key * key)) \
    F(int, ZsetRangeEndReached, (Key * key)) \
    F(void, ZsetRangeStop, (Key * key)) \
    F(int, HashSet, (Key * key, int flags, ...)) \
    F(int, HashGet, (Key * key, int flags, ...)) \
    F(int, ListPush, (Key * key, int where, Str *value)) \
    F(Str *, ListPop, (Key * key, int where)) \
    F(Str *, ListGet, (Key * key, long index)) \
    F(Reply *, Call, (Ctx * ctx, const char *command, const char *format, ...)) \
    F(int, CallReplyType, (Reply * reply)) \
    F(long long, CallReplyInteger, (Reply * reply)) \
    F(size_t, CallReplyLength, (Reply * reply)) \
    F(Reply *, CallReplyArrayElement, (Reply * reply, size_t index)) \
    F(const char *, CallReplyStringPtr, (Reply * reply, size_t *len)) \
    F(int, Replicate, (Ctx * ctx, const char *command, const char *format, ...)) \
    F(int, NotifyKeyspaceEvent, (Ctx * ctx, int type, const char *event, Str *key)) \
    F(int, ReplyWithError, (Ctx * ctx, const char *text)) \
    F(int, ReplyWithLongLong, (Ctx * ctx, long long value)) \
    F(int, ReplyWithArray, (Ctx * ctx, long length)) \
    F(int, ReplyWithString, (Ctx * ctx, Str *string)) \
    F(int, ReplyWithStringBuffer, (Ctx * ctx, const char *at, size_t len)) \
    F(int, ReplyWithNull, (Ctx * ctx)) \
    F(void, Log, (Ctx * ctx, const char *level, const char *format, ...))

#define F(result, name, parameters) extern result(*VM_##name) parameters;
API_FUNCTIONS(F)
#undef F

/* Looks every function up and registers the module; API_ERR where the server lacks one. */
int api_load(Ctx *ctx, const char *module, int version);

#endif
