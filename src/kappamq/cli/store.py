"""`kappamq store`: look into a store directory without a broker."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kappamq.cli.options import AsJson
from kappamq.cli.output import body_text, message_value, moment, print_facts, print_json, print_json_line
from kappamq.errors import StorageError

if TYPE_CHECKING:
    from kappamq.model.message import StoredMessage
    from kappamq.store.settings import StoreSettings

app = typer.Typer(help="Look into a store directory without a broker.", no_args_is_help=True)

Root = Annotated[Path, typer.Argument(help="Store directory: the one with commitlog in it.")]


@app.command()
def check(
    root: Root,
    index_slots: Annotated[int | None, typer.Option("--index-slots", help="If not the usual number.")] = None,
    index_entries: Annotated[int | None, typer.Option("--index-entries", help="If not the usual number.")] = None,
    as_json: AsJson = False,
) -> None:
    """Verify every record, queue entry and index entry; changes nothing. Code 1 when something is broken."""
    from kappamq.store.check import check_store

    settings = settings_of(root)
    settings = replace(
        settings,
        index_slots=index_slots if index_slots is not None else settings.index_slots,
        index_entries=index_entries if index_entries is not None else settings.index_entries,
    )
    report = check_store(root, settings)
    facts = {
        "records": report.records,
        "log_start": report.log_start,
        "log_end": report.log_end,
        "queues": report.queues,
        "queue_entries": report.queue_entries,
        "index_entries": report.index_entries,
        "tail_bytes": report.tail_bytes,
        "is_clean_stop": report.is_clean_stop,
        "is_sound": report.is_sound,
    }
    if as_json:
        found = [{"where": each.where, "log_offset": each.log_offset, "text": each.text} for each in report.violations]
        print_json({**facts, "violations": found})
    else:
        print_facts([(name.removeprefix("is_").replace("_", " "), value) for name, value in facts.items()])
        for violation in report.violations:
            print(f"broken: {violation}")
    if not report.is_sound:
        raise StorageError(
            f"{root} has {len(report.violations)} broken invariants: restore a copy, "
            "or start the broker with store.on_damage = 'truncate' to give up what follows the damage"
        )


@app.command()
def dump(
    root: Root,
    topic: Annotated[str | None, typer.Option("--topic", "-t", help="Only this topic.")] = None,
    start: Annotated[int, typer.Option("--start", min=0, help="First log offset.")] = 0,
    count: Annotated[int, typer.Option("--count", min=0, help="Most records to print; 0: all.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object for each record.")] = False,
) -> None:
    """Print the records of a store in the order they were stored."""
    from kappamq.store.dump import dump_records

    records: Iterator[StoredMessage] = dump_records(root, settings_of(root), topic=topic, start=start)
    for record in islice(records, count or None):
        if as_json:
            print_json_line(message_value(record))
        else:
            place = f"{record.log_offset} {record.topic}:{record.queue_id}@{record.queue_offset}"
            print(f"{place} {moment(record.stored_at_ms)} {body_text(record.body)}")


def settings_of(root: Path) -> "StoreSettings":
    """Settings that fit a store, by the sizes of its files: they must be those it was made with."""
    from kappamq.store.settings import StoreSettings

    if not (root / "commitlog").is_dir():
        raise StorageError(f"{root} has no commit log: name the store directory of a broker")
    settings = StoreSettings()
    log_bytes = _first_size(root / "commitlog")
    queue_bytes = next(
        (size for path in sorted((root / "consumequeue").glob("*/*")) if (size := _first_size(path))), None
    )
    return replace(
        settings,
        segment_bytes=log_bytes or settings.segment_bytes,
        queue_segment_bytes=queue_bytes or settings.queue_segment_bytes,
    )


def _first_size(directory: Path) -> int | None:
    """Size of the first file whose name is an offset."""
    names = sorted(path for path in directory.glob("[0-9]*") if path.is_file() and path.name.isdigit())
    return names[0].stat().st_size if names else None
