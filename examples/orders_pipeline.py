"""Orders as a stream: read the topic `orders`, add up the amounts by product, keep them as Parquet.

    python examples/orders_pipeline.py 127.0.0.1:9876 ./orders-data

Run it again after more orders came: only the new ones are read. Bodies are JSON such as
`{"product": "tea", "amount": 3.5}`.
"""

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ORDER = "product string, amount double"
RUN_SECONDS_MAX = 300


def read_orders(spark: "SparkSession", nameserver: str) -> "DataFrame":
    """The topic as a stream of orders; what is not JSON is left out."""
    from pyspark.sql import functions as F  # noqa: N812 - everybody calls it F.

    messages = (
        spark.readStream.format("rocketmq")
        .option("namesrvAddr", nameserver)
        .option("subscribe", "orders")
        .option("startingOffsets", "earliest")
        .option("commitGroupOffsets", "orders-pipeline")
        .schema("storeTimestamp timestamp, body binary")
        .load()
    )
    order = F.from_json(F.col("body").cast("string"), ORDER)
    return messages.select("storeTimestamp", order.alias("order")).where("order.product is not null")


def by_product(orders: "DataFrame") -> "DataFrame":
    """Amounts and numbers of orders by product."""
    from pyspark.sql import functions as F  # noqa: N812

    totals = orders.groupBy(F.col("order.product").alias("product"))
    return totals.agg(F.count("*").alias("orders"), F.round(F.sum("order.amount"), 2).alias("amount"))


def run(nameserver: str, workdir: Path, spark: "SparkSession | None" = None) -> list[dict[str, object]]:
    """Read what is new, write the totals to `workdir/totals`, print and return them."""
    from kappamq.spark.sessions import local_session

    session = spark or local_session("orders pipeline")
    totals = str(workdir / "totals")

    def replace_totals(frame: "DataFrame", _batch_id: int) -> None:
        frame.coalesce(1).write.mode("overwrite").parquet(totals)

    try:
        query = (
            by_product(read_orders(session, nameserver))
            .writeStream.outputMode("complete")
            .option("checkpointLocation", str(workdir / "checkpoint"))
            .trigger(availableNow=True)
            .foreachBatch(replace_totals)
            .start()
        )
        if not query.awaitTermination(RUN_SECONDS_MAX):
            query.stop()
            raise TimeoutError(f"the orders were not read within {RUN_SECONDS_MAX} s: look at Spark's log")
        rows = [row.asDict() for row in session.read.parquet(totals).orderBy("product").collect()]
    finally:
        if spark is None:
            session.stop()
    _print(rows)
    return rows


def _print(rows: list[dict[str, object]]) -> None:
    table = Table("product", "orders", "amount", title="Orders by product")
    for row in rows:
        table.add_row(*(str(row[name]) for name in ("product", "orders", "amount")))
    Console().print(table)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("usage: python examples/orders_pipeline.py NAMESERVER WORKDIR")
    run(sys.argv[1], Path(sys.argv[2]))
