"""What commands print: tables for people, JSON for programs, one line for each thing that happens."""

import base64
import json
import sys
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from kappamq.model.message import StoredMessage

PIPE_COLUMNS: Final = 400
"""Width of tables that do not go to a terminal: nothing is cut there."""
NUMBER_KINDS: Final = (int, float)


def print_json(value: Any) -> None:
    """One JSON document."""
    print(json.dumps(value, ensure_ascii=False, indent=2))


def print_json_line(value: Any) -> None:
    """One JSON document on one line, at once."""
    print(json.dumps(value, ensure_ascii=False), flush=True)


def print_table(columns: Sequence[str], rows: Iterable[Sequence[Any]], *, title: str | None = None) -> None:
    """A table; columns of numbers are aligned to the right."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    lines = [list(row) for row in rows]
    table = Table(title=title, title_justify="left", box=None, pad_edge=False, header_style="bold")
    for position, column in enumerate(columns):
        is_number = bool(lines) and all(isinstance(line[position], NUMBER_KINDS) for line in lines)
        table.add_column(column, justify="right" if is_number else "left", overflow="fold")
    for line in lines:
        table.add_row(*(Text(_cell(value)) for value in line))
    console = Console(width=None if sys.stdout.isatty() else PIPE_COLUMNS, highlight=False)
    console.print(table)


def print_facts(facts: Iterable[tuple[str, Any]]) -> None:
    """Names and values, one pair on each line."""
    pairs = [(name, _cell(value)) for name, value in facts]
    width = max((len(name) for name, _ in pairs), default=0)
    for name, value in pairs:
        print(f"{name:<{width}}  {value}".rstrip())


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.1f}"
    return str(value)


def moment(at_ms: int) -> str:
    """Local time of milliseconds since the epoch; `-` for none."""
    if at_ms <= 0:
        return "-"
    return datetime.fromtimestamp(at_ms / 1000, UTC).astimezone().isoformat(sep=" ", timespec="milliseconds")


def body_text(body: bytes) -> str:
    """Body as text, or its size if it is not text."""
    try:
        return body.decode()
    except UnicodeDecodeError:
        return f"<{len(body)} bytes>"


def message_value(message: "StoredMessage") -> dict[str, Any]:
    """A message as JSON; a body that is not text is given in base64."""
    value: dict[str, Any] = {
        "message_id": message.message_id,
        "offset_id": message.offset_id,
        "topic": message.topic,
        "broker": message.broker or None,
        "queue_id": message.queue_id,
        "queue_offset": message.queue_offset,
        "log_offset": message.log_offset,
        "size": message.size,
        "tags": message.tags,
        "keys": list(message.keys),
        "born_at_ms": message.born_at_ms,
        "born_host": message.born_host,
        "stored_at_ms": message.stored_at_ms,
        "store_host": message.store_host,
        "retry_count": message.retry_count,
        "properties": message.properties,
    }
    try:
        value["body"] = message.body.decode()
    except UnicodeDecodeError:
        value["body_base64"] = base64.b64encode(message.body).decode()
    return value


def message_facts(message: "StoredMessage") -> list[tuple[str, Any]]:
    """A message for people to read."""
    return [
        ("message id", message.message_id),
        ("offset id", message.offset_id),
        ("topic", message.topic),
        ("queue", f"{message.broker + ' ' if message.broker else ''}{message.queue_id} at {message.queue_offset}"),
        ("log offset", f"{message.log_offset} ({message.size} bytes)"),
        ("tags", message.tags),
        ("keys", " ".join(message.keys) or None),
        ("born", f"{moment(message.born_at_ms)} at {message.born_host}"),
        ("stored", f"{moment(message.stored_at_ms)} at {message.store_host}"),
        ("retries", message.retry_count),
        *((f"  {name}", value) for name, value in sorted(message.properties.items())),
        ("body", body_text(message.body)),
    ]
