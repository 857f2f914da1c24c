#define _GNU_SOURCE
#include "echo.h"

#include <errno.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define READ_BYTES (256 * 1024)
#define EVENTS_MAX 256
#define SECOND_NS 1000000000ll

/* One side of one connection: bytes of a message that is not complete yet, and when each one under way began. */
typedef struct {
    int socket;
    size_t partial;
    int64_t *started_ns; /* a ring: answers come in the order of the requests */
    uint32_t oldest;
} Peer;

static uint8_t buffer[READ_BYTES];

static int64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * SECOND_NS + now.tv_nsec;
}

/* Loopback takes whole requests and answers of one turn as a rule; where it does not, this waits. */
static void write_all(int socket, size_t size)
{
    while (size > 0) {
        ssize_t taken = send(socket, buffer, size < sizeof buffer ? size : sizeof buffer, MSG_NOSIGNAL);
        if (taken < 0 && errno == EINTR)
            continue;
        if (taken < 0)
            failure("echo: %s", strerror(errno));
        size -= (size_t)taken;
    }
}

static int watch(int epoll, Peer *peer)
{
    int one = 1;
    setsockopt(peer->socket, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = peer};
    return epoll_ctl(epoll, EPOLL_CTL_ADD, peer->socket, &event);
}

/* Messages that are complete with what this read brought; -1 when the peer has ended. */
static long receive(Peer *peer, size_t message_bytes)
{
    ssize_t size = recv(peer->socket, buffer, sizeof buffer, MSG_DONTWAIT);
    if (size <= 0)
        return size < 0 && (errno == EAGAIN || errno == EINTR) ? 0 : -1;
    size_t whole = peer->partial + (size_t)size;
    peer->partial = whole % message_bytes;
    return (long)(whole / message_bytes);
}

/* Reads from all that have something, then answers all of them, as our broker does; ends with the first peer. */
static _Noreturn void serve(int listening, const Options *options, Peer *peers)
{
    struct epoll_event events[EVENTS_MAX];
    long counts[EVENTS_MAX];
    int epoll = epoll_create1(0);
    for (int i = 0; i < options->connections; i++) {
        peers[i].socket = accept(listening, NULL, NULL);
        if (peers[i].socket < 0 || watch(epoll, &peers[i]) < 0)
            failure("echo: %s", strerror(errno));
    }
    for (;;) {
        int ready = epoll_wait(epoll, events, EVENTS_MAX, -1);
        for (int i = 0; i < ready; i++)
            if ((counts[i] = receive(events[i].data.ptr, (size_t)options->body_bytes)) < 0)
                _exit(0);
        for (int i = 0; i < ready; i++)
            if (counts[i])
                write_all(((Peer *)events[i].data.ptr)->socket, (size_t)counts[i] * ECHO_REPLY_BYTES);
    }
}

static void note_answers(Peer *peer, long answers, const Options *options, Outcome *outcome, int64_t window_start_ns)
{
    int64_t now = now_ns();
    for (long i = 0; i < answers; i++) {
        int64_t *started = &peer->started_ns[peer->oldest];
        peer->oldest = (peer->oldest + 1) % (uint32_t)options->in_flight;
        outcome->total_requests++;
        if (now >= window_start_ns) {
            outcome->requests++;
            histogram_add(&outcome->latency, now - *started);
        }
        *started = now;
    }
    write_all(peer->socket, (size_t)answers * (size_t)options->body_bytes);
}

static void ask(const struct sockaddr_in *address, const Options *options, Peer *peers, Outcome *outcome)
{
    struct epoll_event events[EVENTS_MAX];
    int epoll = epoll_create1(0);
    for (int i = 0; i < options->connections; i++) {
        peers[i].socket = socket(AF_INET, SOCK_STREAM, 0);
        peers[i].started_ns = calloc((size_t)options->in_flight, sizeof *peers[i].started_ns);
        if (!peers[i].started_ns || connect(peers[i].socket, (const struct sockaddr *)address, sizeof *address) < 0 ||
            watch(epoll, &peers[i]) < 0)
            failure("echo: %s", strerror(errno));
    }
    int64_t start_ns = now_ns();
    int64_t window_start_ns = start_ns + (int64_t)(options->warmup_seconds * 1e9);
    int64_t window_end_ns = window_start_ns + (int64_t)(options->seconds * 1e9);
    for (int i = 0; i < options->connections; i++) {
        for (int slot = 0; slot < options->in_flight; slot++)
            peers[i].started_ns[slot] = start_ns;
        write_all(peers[i].socket, (size_t)options->in_flight * (size_t)options->body_bytes);
    }
    while (now_ns() < window_end_ns) {
        int ready = epoll_wait(epoll, events, EVENTS_MAX, 1000);
        for (int i = 0; i < ready; i++) {
            long answers = receive(events[i].data.ptr, ECHO_REPLY_BYTES);
            if (answers < 0)
                failure("echo: the answering process has ended");
            if (answers)
                note_answers(events[i].data.ptr, answers, options, outcome, window_start_ns);
        }
    }
    outcome->seconds = options->seconds;
    outcome->messages = outcome->requests;
    outcome->total_messages = outcome->total_requests;
}

void echo_run(const Options *options, Outcome *outcome)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof address;
    int listening = socket(AF_INET, SOCK_STREAM, 0);
    Peer *peers = calloc((size_t)options->connections, sizeof *peers);
    if (!peers || listening < 0 || bind(listening, (struct sockaddr *)&address, size) < 0 ||
        listen(listening, CONNECTIONS_MAX) < 0 || getsockname(listening, (struct sockaddr *)&address, &size) < 0)
        failure("echo: %s", strerror(errno));
    pid_t server = fork();
    if (server < 0)
        failure("echo: %s", strerror(errno));
    if (server == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        serve(listening, options, peers);
    }
    ask(&address, options, peers, outcome);
    kill(server, SIGKILL);
    waitpid(server, NULL, 0);
}
