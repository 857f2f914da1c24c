"""A Delta table. Its log holds, for each query, the last batch: written together with the files, or not at all."""

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import pyarrow.parquet as pq

from kappamq.spark.lake.options import LakeOptions
from kappamq.spark.lake.staging import StagedFile, Staging
from kappamq.spark.lake.tables import Progress, lake_missing, make_ready

if TYPE_CHECKING:
    import pyarrow as pa
    from deltalake import DeltaTable


class DeltaLake:
    """A table whose log is in the same directory."""

    def __init__(self, options: LakeOptions) -> None:
        self._options = options

    def commit(self, staging: Staging, files: Sequence[StagedFile]) -> None:
        try:
            from deltalake import CommitProperties, Transaction
            from deltalake.transaction import AddAction, RemoveAction
        except ImportError as missing:
            raise lake_missing(missing) from None
        if not files:
            staging.remove()
            return
        table = self._open(staging, files[0])
        last = table.transaction_version(staging.query)
        if last is None or last < staging.batch:
            Progress(staging).check_owner(files)
            now_ms = int(time.time() * 1000)
            columns = self._options.partition_columns
            actions: list[AddAction | RemoveAction] = [
                AddAction(
                    name, file.size, dict(zip(columns, file.values)), now_ms, True, f'{{"numRecords":{file.rows}}}'
                )
                for file, name in make_ready(staging, files, self._options)
            ]
            properties = CommitProperties(app_transactions=[Transaction(staging.query, staging.batch)])
            table.create_write_transaction(
                actions, "append", table.schema(), partition_by=list(columns), commit_properties=properties
            )
        Progress(staging).record(files)
        staging.remove()

    def _open(self, staging: Staging, sample: StagedFile) -> "DeltaTable":
        from deltalake import DeltaTable

        if not DeltaTable.is_deltatable(self._options.path):
            DeltaTable.create(
                self._options.path,
                schema=_schema(staging, sample, self._options),
                mode="ignore",
                partition_by=list(self._options.partition_columns),
            )
        return DeltaTable(self._options.path)


def _schema(staging: Staging, sample: StagedFile, options: LakeOptions) -> "pa.Schema":
    import pyarrow as pa

    with staging.files.open_input_file(sample.path) as opened:
        schema = pq.read_schema(opened).remove_metadata()
    for name in options.partition_columns:
        schema = schema.append(pa.field(name, pa.date32() if name == "day" else pa.string()))
    return schema


def file_paths(path: str) -> list[str]:
    """Files that belong to the table now."""
    try:
        from deltalake import DeltaTable
    except ImportError as missing:
        raise lake_missing(missing) from None
    return [str(uri) for uri in DeltaTable(path).file_uris()]
