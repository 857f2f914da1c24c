"""Feed the compiled kernel and the reference with mutated bytes until the time is up: `python -m tests.fuzz [seconds]`.

Sockets and syncs have no reference but a model (`socket_input.py`); they are real, within sequences made at random. A
difference stops the run with the input; what reads or writes outside of a buffer is caught by the
sanitizer that `make fuzz` builds in. The seed is printed, so that a run can be repeated.
"""

import random
import sys
import time

from tests.fuzz import client_input, record_input, socket_input, verify_input
from tests.fuzz.kernel_input import FAULTS, Corpus, difference

SECONDS: float = 600.0
SYNC_EVERY: int = 50
"""A sync takes as long as hundreds of other inputs."""


def main(arguments: list[str]) -> int:
    seconds = float(arguments[0]) if arguments else SECONDS
    seed = int(arguments[1]) if len(arguments) > 1 else random.SystemRandom().getrandbits(32)
    print(f"fuzzing for {seconds:.0f} s, seed {seed}", flush=True)
    corpus = Corpus(random.Random(seed))
    records = record_input.Records(random.Random(seed))
    logs = verify_input.Logs(random.Random(seed))
    end = time.monotonic() + seconds
    client = client_input.Input(random.Random(seed))
    count = plain = stored = 0
    while time.monotonic() < end:
        data = corpus.next()
        found, taken = difference(data)
        if found is not None:
            print(f"after {count} inputs: {found}\ninput: {data.hex()}", file=sys.stderr)
            return 1
        reply = records.next()
        found = record_input.difference(reply)
        if found is not None:
            print(f"after {count} inputs: {found}\ninput: {reply.hex()}", file=sys.stderr)
            return 1
        log = logs.next()
        found = verify_input.difference(log)
        if found is not None:
            print(f"after {count} inputs: {found}\ninput: {log}", file=sys.stderr)
            return 1
        columns, replies = client.columns(), client.replies()
        found, matched = client_input.difference(columns, replies)
        if found is not None:
            print(f"after {count} inputs: {found}\ninput: {columns} {replies.hex()}", file=sys.stderr)
            return 1
        turns = random.Random(f"{seed} {count}")
        found = socket_input.Turns(turns).run()
        if found is None and count % SYNC_EVERY == 0:
            found = socket_input.sync_difference(turns)
        if found is not None:
            print(f"after {count} inputs: {found}", file=sys.stderr)
            return 1
        count += 1
        plain += taken > 0
        stored += matched > 0
    print(f"{count} inputs, {plain} of them with plain sends, {stored} with plain replies, no difference")
    print(f"errors seen: {dict(FAULTS)}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
