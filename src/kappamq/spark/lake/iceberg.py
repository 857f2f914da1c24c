"""An Iceberg table. A property of it holds the last batch of each query, and changes together with the files.

The catalog is a SQLite file beside the table, so that nothing else is needed; another one is used when the environment
configures it for pyiceberg under the name `kappamq` (`PYICEBERG_CATALOG__KAPPAMQ__URI` and so on).
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import pyarrow.parquet as pq

from kappamq.spark.lake.options import TABLE_NAME, LakeOptions
from kappamq.spark.lake.staging import StagedFile, Staging
from kappamq.spark.lake.tables import Progress, lake_missing, make_ready

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table

CATALOG: Final = "kappamq"
BATCH_PROPERTY: Final = "kappamq.batch."


class IcebergLake:
    """A table in a catalog."""

    def __init__(self, options: LakeOptions) -> None:
        self._options = options

    def commit(self, staging: Staging, files: Sequence[StagedFile]) -> None:
        if not files:
            staging.remove()
            return
        table = self._open(staging, files[0])
        key = BATCH_PROPERTY + staging.query
        if int(table.properties.get(key, "-1")) < staging.batch:
            Progress(staging).check_owner(files)
            paths = [file.path for file, _ in make_ready(staging, files, self._options)]
            with table.transaction() as transaction:
                transaction.set_properties({key: str(staging.batch)})
                transaction.add_files(paths, check_duplicate_files=False)
        Progress(staging).record(files)
        staging.remove()

    def _open(self, staging: Staging, sample: StagedFile) -> "Table":
        catalog = open_catalog(self._options.path)
        if catalog.table_exists(self._options.table):
            return catalog.load_table(self._options.table)
        with staging.files.open_input_file(sample.path) as opened:
            schema = pq.read_schema(opened).remove_metadata()
        catalog.create_namespace_if_not_exists(self._options.table.rpartition(".")[0])
        table = catalog.create_table(self._options.table, schema, location=f"{staging.root}/_table")
        with table.update_spec() as update:
            for name in self._options.partition_columns:
                update.add_identity(name)
        return catalog.load_table(self._options.table)


def open_catalog(path: str) -> "Catalog":
    """The catalog that pyiceberg's configuration names `kappamq`, or a SQLite file in the lake."""
    try:
        from pyiceberg.catalog import load_catalog
        from pyiceberg.catalog.sql import SqlCatalog
        from pyiceberg.utils.config import Config
    except ImportError as missing:
        raise lake_missing(missing) from None
    if Config().get_catalog_config(CATALOG):
        return load_catalog(CATALOG)
    return SqlCatalog(CATALOG, uri=f"sqlite:///{path}/_catalog.db", warehouse=path)


def file_paths(path: str, table: str = TABLE_NAME) -> list[str]:
    """Files that belong to the table now."""
    return [task.file.file_path for task in open_catalog(path).load_table(table).scan().plan_files()]
