/* The floor under every broker: a server of one thread that does nothing but answer. */
#ifndef KAPPAMQ_ECHO_H
#define KAPPAMQ_ECHO_H

#include "load.h"

#define ECHO_REPLY_BYTES 200 /* about one reply to a send */

/* Answers requests of `body_bytes` each from a process of its own, in turns over all connections; `outcome` starts
 * zeroed. Nothing is parsed, stored or checked: what is left is the kernel's work and the wake-ups. */
void echo_run(const Options *options, Outcome *outcome);

#endif
