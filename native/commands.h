/* The bodies of the commands, one file per family. */
#ifndef EMQ_COMMANDS_H
#define EMQ_COMMANDS_H

#include "common.h"

/* schedule.c */
int schedule(Call *c);
int reschedule(Call *c);

#endif
