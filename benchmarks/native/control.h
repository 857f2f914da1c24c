/* Single requests before and after the load, on a connection of their own, one at a time. */
#ifndef KAPPAMQ_CONTROL_H
#define KAPPAMQ_CONTROL_H

#include "options.h"

#define CONTROL_TIMEOUT_SECONDS 15

int connect_to(const Options *options);

/* Creates all topics or changes their number of queues; fails loudly when the broker refuses. */
void create_topics(const Options *options, int socket);

/* Messages in all queues of all topics: the sum of their maximum offsets. */
int64_t stored_messages(const Options *options, int socket);

#endif
