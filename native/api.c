#include "api.h"

#define F(result, name, parameters) result(*VM_##name) parameters;
API_FUNCTIONS(F)
#undef F

typedef int (*Lookup)(const char *name, void *function);

int api_load(Ctx *ctx, const char *module, int version) {
    /* A void pointer cannot be cast to a function in ISO C, it can be read as one. */
    Lookup lookup = *(Lookup *)(void *)ctx;
#define F(result, name, parameters) \
    if (lookup("ValkeyModule_" #name, &VM_##name) != API_OK) return API_ERR;
    API_FUNCTIONS(F)
#undef F
    if (VM_IsModuleNameBusy(module)) return API_ERR;
    VM_SetModuleAttribs(ctx, module, version, API_VERSION);
    return API_OK;
}
