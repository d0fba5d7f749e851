/* Receipts make a claim safe to send again: the twin of lua/include/receipt.lua. The last claim of a consumer, as text
 * `number random id token id token …`. */
#ifndef EMQ_RECEIPT_H
#define EMQ_RECEIPT_H

#include "candidates.h"

/* 0 where there is none. */
double receipt_number(Call *c, const Str *receipt);

void receipt_write(Claim *claim, Str *key, double number, long long lease_ms);

/* Answers what is still in hand of a receipt whose reply was never read, extended; nothing new is taken. */
int replay(Call *c, Str *active, Str *key, const Str *receipt, long long lease_ms);

/* The last six words of a claim's reply for each job, and the ids of flow children. */
void reply_jobs(Call *c, const Taken *jobs, size_t n);
void reply_kin(Call *c, const Taken *jobs, size_t n);
/* What a claim's reply begins with. */
void reply_start(Call *c, double number, const char *why, Str *random);

#endif
