"""What can this machine do at best? Durable writes, round trips over loopback, answers of a bare server: the floor.

No broker is faster than one durable write and one round trip. And no broker of one thread takes more requests than a
server in C that reads and answers in turns over all connections and does nothing else: that is what `echo` measures.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import socket
import tempfile
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Final

from benchmarks import generator
from benchmarks.generator import GeneratorFailed
from benchmarks.results import CACHE, Json, save, table

RECORD_BYTES: Final = 1024
FILE_BYTES: Final = 64 * 1024 * 1024
LARGE_WRITE_BYTES: Final = 1024 * 1024
MESSAGE_BYTES: Final = 512  # About one send request with 128 bytes of body.
ROUNDS: Final = 2000
QUICK_ROUNDS: Final = 300
ECHO_SHAPES: Final = ((1, 1), (1, 64), (64, 1), (8, 32))
ECHO_SECONDS: Final = 3.0
QUICK_ECHO_SECONDS: Final = 0.3


def main(arguments: list[str]) -> int:
    """Measure, print a table, save the report."""
    parser = argparse.ArgumentParser(prog="benchmarks floor", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer rounds")
    parser.add_argument("--directory", type=Path, default=CACHE / "data", help="on the file system to measure")
    chosen = parser.parse_args(arguments)
    rounds = QUICK_ROUNDS if chosen.quick else ROUNDS
    chosen.directory.mkdir(parents=True, exist_ok=True)
    figures = {
        "pwrite of 1 KiB and fdatasync": durable_write(chosen.directory, RECORD_BYTES, rounds, filled=True),
        "the same in blocks never written": durable_write(chosen.directory, RECORD_BYTES, rounds, filled=False),
        "pwrite of 1 MiB and fdatasync": durable_write(chosen.directory, LARGE_WRITE_BYTES, rounds // 20, filled=True),
        "loopback echo of 512 B": loopback_echo(rounds * 5),
    }
    rows = [(name, *(f"{figure[key]:,.1f}" for key in ("p50", "p99", "max"))) for name, figure in figures.items()]
    print(table(("floor", "p50 us", "p99 us", "max us"), rows))
    echoes = bare_server(QUICK_ECHO_SECONDS if chosen.quick else ECHO_SECONDS)
    print(echo_table(echoes))
    print(save("floor", {"quick": chosen.quick, "latency_us": figures, "echo": echoes}))
    return 0


def bare_server(seconds: float) -> list[Json]:
    """Rates and latencies of a server that only answers, in the shapes of `load`; none without a C compiler."""
    try:
        return [generator.echo(*shape, message_bytes=MESSAGE_BYTES, seconds=seconds) for shape in ECHO_SHAPES]
    except GeneratorFailed as fault:
        print(f"the bare server is left out: {fault}")
        return []


def echo_table(echoes: list[Json]) -> str:
    """One row per shape."""
    rows = [
        (
            f"{echo['connections']} x {echo['in_flight']}",
            f"{echo['rate']:,.0f}",
            *(f"{echo['latency_us'][key]:,.0f}" for key in ("p50", "p99")),
        )
        for echo in echoes
    ]
    return table(("bare server that only answers", "requests/s", "p50 us", "p99 us"), rows)


def durable_write(directory: Path, size: int, rounds: int, *, filled: bool) -> Json:
    """Latencies of writes that follow each other in a file that has its full length, as a log's segment has.

    When the file is not `filled`, its blocks are only allocated, and the first write to each also changes metadata.
    """
    payload = os.urandom(size)
    with tempfile.TemporaryFile(dir=directory) as file:
        descriptor = file.fileno()
        if filled:
            for start in range(0, FILE_BYTES, LARGE_WRITE_BYTES):
                os.pwrite(descriptor, bytes(LARGE_WRITE_BYTES), start)
        else:
            os.posix_fallocate(descriptor, 0, FILE_BYTES)
        os.fsync(descriptor)
        position = 0

        def write() -> None:
            nonlocal position
            os.pwrite(descriptor, payload, position)
            os.fdatasync(descriptor)
            position = (position + size) % (FILE_BYTES - size)

        return _latencies(write, rounds)


def loopback_echo(rounds: int) -> Json:
    """Latencies of one message there and back between two processes, both in Python."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_echo, args=(theirs,), daemon=True)
    process.start()
    try:
        with socket.create_connection(("127.0.0.1", ours.recv()), timeout=10) as connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            message = bytes(MESSAGE_BYTES)

            def exchange() -> None:
                connection.sendall(message)
                missing = MESSAGE_BYTES
                while missing:
                    received = connection.recv(missing)
                    if not received:
                        raise ConnectionError("the echoing process ended early")
                    missing -= len(received)

            return _latencies(exchange, rounds)
    finally:
        process.join(5)
        process.kill()


def _echo(parent: Connection) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(30)
        parent.send(server.getsockname()[1])
        connection, _ = server.accept()
        with connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            while received := connection.recv(65536):
                connection.sendall(received)


def _latencies(work: Callable[[], None], rounds: int) -> Json:
    for _ in range(max(rounds // 10, 1)):
        work()
    samples = []
    for _ in range(rounds):
        start = time.perf_counter_ns()
        work()
        samples.append((time.perf_counter_ns() - start) / 1000)
    samples.sort()
    return {
        "rounds": rounds,
        "p50": round(samples[rounds // 2], 1),
        "p99": round(samples[min(int(rounds * 0.99), rounds - 1)], 1),
        "max": round(samples[-1], 1),
    }
