"""How long does one send take between bytes and record, and between place and reply, in each kernel?"""

from __future__ import annotations

import argparse
from typing import Any, Final

from benchmarks.results import save
from benchmarks.timing import QUICK_ROUNDS, ROUNDS, Timing, measure, report, timings_table
from kappamq.kernel import KERNEL, reference
from kappamq.store.plain_runs import PlainRun
from kappamq.wire.frame import FrameDecoder, encode_frame
from kappamq.wire.headers import SendRequest, decode_fields

SENDS: Final = 64
BODY_BYTES: Final = 128
TOPIC: Final = "TopicTest"
QUEUES: Final = 4
HOST: Final = bytes((127, 0, 0, 1, 0, 0, 42, 159))
STAMP: Final = b"MSG_REGION\x01DefaultRegion\x02TRACE_ON\x01true\x02CLUSTER\x01DefaultCluster\x02"


def main(arguments: list[str]) -> int:
    """Measure, print a table, save the report."""
    parser = argparse.ArgumentParser(prog="benchmarks codec", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer rounds")
    chosen = parser.parse_args(arguments)
    rounds = QUICK_ROUNDS if chosen.quick else ROUNDS
    data = sends()
    timings = ordinary(data, rounds)
    for name, kernel in kernels():
        timings += lane(name, kernel, data, rounds)
    print(timings_table(timings))
    print(save("codec", {"quick": chosen.quick, "kernel": KERNEL, **report(timings)}))
    return 0


def kernels() -> list[tuple[str, Any]]:
    """The kernels that can run here."""
    found: list[tuple[str, Any]] = [("python", reference)]
    if KERNEL == "compiled":
        from kappamq.kernel import _compiled

        found.append(("compiled", _compiled))
    return found


def sends() -> bytes:
    """What one read of a busy connection brings."""
    return b"".join(
        [
            encode_frame(
                SendRequest(
                    producer_group="benchmark",
                    topic=TOPIC,
                    queue_id=number % QUEUES,
                    born_at_ms=1_700_000_000_000,
                    properties=f"UNIQ_KEY\x01{number:032X}\x02WAIT\x01true\x02TAGS\x01TagA\x02",
                ).command(body=bytes(BODY_BYTES))
            )
            for number in range(SENDS)
        ]
    )


def scan(kernel: Any, data: bytes) -> PlainRun:
    """All sends of a read."""
    run = PlainRun(HOST, sources=[(data, HOST)], count=SENDS, targets=kernel.Targets())
    _end, count, _answers, _unknown = kernel.scan_sends(
        data,
        0,
        run.rows,
        run.texts,
        run.targets,
        source=0,
        topics={TOPIC.encode(): QUEUES},
        stamp=STAMP,
        ids=bytearray(16),
        count_max=SENDS,
        frame_bytes_max=1 << 24,
        body_bytes_max=1 << 22,
        text_bytes_max=32_000,
        batch_bytes_max=1 << 22,
    )
    assert count == SENDS, "the lane left out a send"
    return run


def ordinary(data: bytes, rounds: int) -> list[Timing]:
    decoder = FrameDecoder()
    commands = decoder.feed(data)
    fields = {"msgId": "A" * 32, "queueId": "1", "queueOffset": "12345", "transactionId": "A" * 32}
    return [
        measure("one by one: frame to command", lambda: len(decoder.feed(data)), rounds=rounds),
        measure(
            "one by one: command to request",
            lambda: len([decode_fields(command.fields, SendRequest) for command in commands]),
            rounds=rounds,
        ),
        measure(
            "one by one: reply to frame",
            lambda: len([encode_frame(command.reply(0, fields=fields)) for command in commands]),
            rounds=rounds,
        ),
    ]


def lane(name: str, kernel: Any, data: bytes, rounds: int) -> list[Timing]:
    run = scan(kernel, data)
    for number in range(len(run.targets)):
        run.targets.set_tail(number, kernel.QueueTail())
    place: dict[str, Any] = {
        "first": 0,
        "log_offset": 0,
        "room": 1 << 30,
        "stored_at_ms": 1_700_000_000_000,
        "store_host": HOST,
        "append_crc": True,
    }
    places = kernel.place_sends(run.rows, run.texts, run.sources, run.targets, **place)[1]
    pieces: dict[str, Any] = {
        "sources": 1,
        "host": HOST,
        "json": (b"piece of a reply",) * 6,
        "binary": (b"",) * 7,
        "batch_json": (b"",) * 5,
        "batch_binary": (b"",) * 6,
    }

    def placed() -> int:
        kernel.place_sends(run.rows, run.texts, run.sources, run.targets, **place)
        return SENDS

    def answered() -> int:
        kernel.encode_send_replies(run.rows, places, run.texts, run.targets, **pieces)
        return SENDS

    return [
        measure(f"fast lane, {name}: frames to rows", lambda: scan(kernel, data).count, rounds=rounds),
        measure(f"fast lane, {name}: rows to records", placed, rounds=rounds),
        measure(f"fast lane, {name}: places to replies", answered, rounds=rounds),
    ]
