"""`python -m benchmarks [name ...] [--quick] [options of that benchmark]`.

Without a name: a quick run of everything that can run here, which is what `make bench` does. With one name, all further
options go to that benchmark (`python -m benchmarks load --help`).
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Final

from benchmarks.brokers import Unavailable
from benchmarks.generator import GeneratorFailed

# The order of a run: quick and general first. Each module has `main(arguments) -> exit status` and says in the first
# line of its docstring which question it answers.
NAMES: Final = (
    *("floor", "codec", "append", "pull", "decode", "client"),
    *("load", "latency", "loop_lag", "growth", "backlog", "lateness", "peer"),
    *("spark_read", "spark_sink", "spark_stream"),
)


def main(arguments: list[str]) -> int:
    """Run the named benchmarks, or all of them quickly."""
    existing = [name for name in NAMES if (Path(__file__).parent / f"{name}.py").is_file()]
    names: list[str] = []
    while arguments and not arguments[0].startswith("-"):
        names.append(arguments.pop(0))
    unknown = [name for name in names if name not in existing]
    if unknown or "--list" in arguments or (not names and {"-h", "--help"} & set(arguments)):
        _list(existing, unknown)
        return 2 if unknown else 0
    if not names:
        names, arguments = existing, ["--quick"]
    return max(_run(name, arguments) for name in names)


def _run(name: str, arguments: list[str]) -> int:
    module = importlib.import_module(f"benchmarks.{name}")
    print(f"\n== {name}: {_question(name)}", flush=True)
    try:
        status: int = module.main(list(arguments))
    except Unavailable as reason:
        print(f"{name} is left out: {reason}", file=sys.stderr)
        return 0
    except GeneratorFailed as failure:
        print(f"{name} failed: {failure}", file=sys.stderr)
        return 1
    return status


def _list(existing: list[str], unknown: list[str]) -> None:
    stream = sys.stderr if unknown else sys.stdout
    for name in unknown:
        print(f"there is no benchmark {name!r}; there are:", file=stream)
    print("".join(f"{name:8} {_question(name)}\n" for name in existing) + (__doc__ or ""), file=stream)


def _question(name: str) -> str:
    documentation = importlib.import_module(f"benchmarks.{name}").__doc__ or ""
    return documentation.splitlines()[0]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
