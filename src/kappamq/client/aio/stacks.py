"""Where the threads and tasks of this process are, for operators who wonder why a consumer does not go on."""

import asyncio
import sys
import threading
import traceback
from collections.abc import Iterable
from typing import Final

STACK_DEPTH_MAX: Final = 50
STACK_TASKS_MAX: Final = 500


def stacks() -> str:
    """Where every thread and every task of this process is just now, one line for each call, in jstack's shape."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    parts = []
    for identity, frame in sys._current_frames().items():
        calls = traceback.extract_stack(frame, limit=STACK_DEPTH_MAX)
        parts.append(_stack(names.get(identity, "?"), f"TID: {identity} STATE: RUNNABLE", calls))
    for task in list(asyncio.all_tasks())[:STACK_TASKS_MAX]:
        frames = task.get_stack(limit=STACK_DEPTH_MAX)
        calls = traceback.StackSummary.extract((frame, frame.f_lineno) for frame in frames)
        parts.append(_stack(task.get_name(), "TASK STATE: WAITING", calls))
    return "\n".join(parts)


def _stack(name: str, state: str, calls: Iterable[traceback.FrameSummary]) -> str:
    lines = [f"{name:<40} {state}"]
    lines += [f"{name:<40} {call.name}({call.filename}:{call.lineno})" for call in reversed(list(calls))]
    return "\n".join(lines) + "\n"
