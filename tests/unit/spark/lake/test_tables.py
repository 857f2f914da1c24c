"""Batches become visible exactly once, in every format, whatever is interrupted."""

from collections.abc import Callable
from datetime import date
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as ds
import pytest

from kappamq.errors import UsageError
from kappamq.spark.lake import tables
from kappamq.spark.lake.options import LakeOptions, parse_lake_options, placed
from kappamq.spark.lake.staging import StagedFile, Staging, merge_files, split_rows, write_staged
from kappamq.spark.lake.tables import Progress, gather, open_table

SCHEMA = pa.schema(
    [("n", pa.int64()), ("topic", pa.string()), ("day", pa.date32()), ("m", pa.map_("string", "string"))]
)
FORMATS = ["parquet", "delta", "iceberg"]


def rows(first: int, count: int, topic: str = "orders") -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(
        {
            "n": list(range(first, first + count)),
            "topic": [topic] * count,
            "day": [date(2024, 5, 1 + number % 2) for number in range(count)],
            "m": [[("k", "v")]] * count,
        },
        schema=SCHEMA,
    )


def stage(
    options: LakeOptions, batch: int, *tasks: pa.RecordBatch, query: str = "q"
) -> tuple[Staging, list[StagedFile]]:
    staging = Staging(options.path, query, batch)
    keeps = options.format == "iceberg"
    files = [
        file
        for number, task in enumerate(tasks)
        for file in write_staged([task], staging, f"{number}-0", options.partition_columns, keeps_columns=keeps)
    ]
    return staging, files


def visible(options: LakeOptions) -> list[int]:
    return sorted(everything(options)["n"].to_pylist())


def topics(options: LakeOptions) -> set[str]:
    return set(everything(options)["topic"].to_pylist())


def everything(options: LakeOptions) -> pa.Table:
    """The lake as its own readers see it: none of them knows us."""
    if options.format == "delta":
        from deltalake import DeltaTable

        return DeltaTable(options.path).to_pyarrow_table()
    if options.format == "iceberg":
        from kappamq.spark.lake.iceberg import open_catalog

        return open_catalog(options.path).load_table(options.table).scan().to_arrow()
    return ds.dataset(options.path, partitioning="hive").to_table()


@pytest.fixture(params=FORMATS)
def options(request: pytest.FixtureRequest, tmp_path: Path) -> LakeOptions:
    if request.param == "delta":
        pytest.importorskip("deltalake", reason="the extra 'lake' is not installed")
    if request.param == "iceberg":
        pytest.importorskip("pyiceberg", reason="the extra 'lake' is not installed")
    (tmp_path / "lake").mkdir()
    return LakeOptions(str(tmp_path / "lake"), request.param)


@pytest.mark.filterwarnings("ignore")
def test_batches_are_added_once(options: LakeOptions) -> None:
    table = open_table(options)
    table.commit(*stage(options, 0, rows(0, 10), rows(10, 10)))
    assert visible(options) == list(range(20))
    table.commit(*stage(options, 1, rows(20, 5)))
    # As if Spark had died before noting the batch: it comes again.
    table.commit(*stage(options, 1, rows(20, 5)))
    table.commit(*stage(options, 0, rows(0, 10), rows(10, 10)))
    assert visible(options) == list(range(25))
    assert not list(Path(options.path).glob("_staging/*"))
    with pytest.raises(UsageError, match="go on with its checkpoint"):
        table.commit(*stage(options, 0, rows(0, 10), query="another"))
    table.commit(*stage(options, 0, rows(100, 2, topic="%DLQ%a|b"), query="another"))
    assert visible(options) == [*range(25), 100, 101]
    assert topics(options) == {"orders", "%DLQ%a|b"}


@pytest.mark.filterwarnings("ignore")
def test_a_directory_keeps_its_format(options: LakeOptions) -> None:
    open_table(options).commit(*stage(options, 0, rows(0, 10)))
    for other in FORMATS:
        if other != options.format:
            with pytest.raises(UsageError, match=f"is kept as {options.format}, not as {other}"):
                open_table(LakeOptions(options.path, other))
    open_table(options)


def test_executors_are_given_full_paths(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    assert placed(LakeOptions("lake")).path == str(tmp_path / "lake")
    for full in ("/data/lake", "s3://bucket/lake", "file:/data/lake"):
        assert placed(LakeOptions(full)).path == full


class Died(BaseException):
    """Stands for the end of the process."""


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("when", range(8))
def test_a_crash_at_any_step_repeats_nothing(options: LakeOptions, monkeypatch: pytest.MonkeyPatch, when: int) -> None:
    table = open_table(options)
    table.commit(*stage(options, 0, rows(0, 10)))
    steps = 0

    def dying(step: Callable[..., None]) -> Callable[..., None]:
        def run(*given: object, **named: object) -> None:
            nonlocal steps
            steps += 1
            if steps == when + 1:
                raise Died
            step(*given, **named)

        return run

    with monkeypatch.context() as patch:
        patch.setattr(Staging, "write_json", dying(Staging.write_json))
        patch.setattr(Staging, "remove", dying(Staging.remove))
        patch.setattr(Progress, "record", dying(Progress.record))
        patch.setattr(tables, "merge_files", dying(merge_files))
        try:
            table.commit(*stage(options, 1, rows(10, 10), rows(20, 10)))
        except Died:
            seen = visible(options)
            assert len(set(seen)) == len(seen)
    table.commit(*stage(options, 1, rows(10, 10), rows(20, 10)))
    assert visible(options) == list(range(30))


def test_a_crash_between_two_renames(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = LakeOptions(str(tmp_path))
    table = open_table(options)
    table.commit(*stage(options, 0, rows(0, 10)))
    staging, files = stage(options, 1, rows(10, 10))

    class HalfMoving:
        moved = 0

        def move(self, source: str, target: str) -> None:
            if "/day=" in target:
                self.moved += 1
                if self.moved == 2:
                    raise Died
            real.move(source, target)

        def __getattr__(self, name: str) -> object:
            return getattr(real, name)

    real = staging.files
    real_merge = merge_files
    staging.files = HalfMoving()
    monkeypatch.setattr(tables, "merge_files", lambda _files, sources, target: real_merge(real, sources, target))
    monkeypatch.setattr(tables, "_last_part", lambda _files, directory, ask=tables._last_part: ask(real, directory))
    monkeypatch.setattr(
        Progress, "check_owner", lambda self, files: None
    )  # Looks into directories, which only the real file system can.
    with pytest.raises(Died):
        table.commit(staging, files)
    assert visible(options) == sorted([*range(10), *range(10, 20, 2)])
    table.commit(*stage(options, 1, rows(10, 10)))
    assert visible(options) == list(range(20))


def test_many_small_batches_make_few_files(tmp_path: Path) -> None:
    options = LakeOptions(str(tmp_path), file_bytes=8_000)
    table = open_table(options)
    for batch in range(60):
        table.commit(*stage(options, batch, rows(batch * 100, 50), rows(batch * 100 + 50, 50)))
    files = list(tmp_path.glob("topic=orders/day=*/*.parquet"))
    assert len(files) < 20
    assert visible(options) == list(range(6000))


def test_groups_of_files() -> None:
    assert gather([("a", 3), ("b", 3), ("c", 9), ("d", 1)], 5) == [["a", "b"], ["c"], ["d"]]
    assert gather([], 5) == []


def test_rows_are_split_by_value() -> None:
    parts = dict(split_rows(rows(0, 4), ("topic", "day")))
    assert {key: part["n"].to_pylist() for key, part in parts.items()} == {
        ("orders", "2024-05-01"): [0, 2],
        ("orders", "2024-05-02"): [1, 3],
    }


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "no directory"),
        ({"path": "x", "tableformat": "orc"}, "use parquet, delta, iceberg"),
        ({"path": "x", "targetFileBytes": "-1"}, "whole number"),
        ({"path": "x", "tableFormt": "delta"}, "did you mean 'tableFormat'"),
    ],
)
def test_mistakes_in_options(given: dict[str, str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        parse_lake_options(given)
