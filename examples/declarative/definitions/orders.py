"""Orders: a topic as a table, totals by product, and large orders to a topic of their own.

    topic orders ─▶ table orders ─▶ view orders_by_product
                        └─────────▶ topic large-orders

Bodies are JSON such as `{"product": "tea", "amount": 3.5}`. Spark's pipelines keep what is read: each run adds what is
new. Set KAPPAMQ_NAMESERVER where `spark-pipelines` runs.
"""

import os

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - everybody calls it F.

NAMESERVER = os.environ.get("KAPPAMQ_NAMESERVER", "127.0.0.1:9876")
LARGE = 100


def session() -> SparkSession:
    """The session that the pipeline runs in."""
    active = SparkSession.getActiveSession()
    assert active is not None, "run this with spark-pipelines"
    return active


@dp.table
def orders() -> DataFrame:
    """Every order, as it came; what is not JSON is left out."""
    messages = (
        session()
        .readStream.format("rocketmq")
        .option("namesrvAddr", NAMESERVER)
        .option("subscribe", "orders")
        .option("startingOffsets", "earliest")
        .load()
    )
    order = F.from_json(F.col("body").cast("string"), "product string, amount double")
    columns = messages.select(order.alias("order"), "keys", "storeTimestamp", "messageId")
    return columns.where("order.product is not null").select(
        F.col("order.product").alias("product"), F.col("order.amount").alias("amount"), "keys", "storeTimestamp"
    )


@dp.materialized_view
def orders_by_product() -> DataFrame:
    """Numbers and amounts, computed anew by each run."""
    totals = session().read.table("orders").groupBy("product")
    return totals.agg(F.count("*").alias("orders"), F.round(F.sum("amount"), 2).alias("amount"))


dp.create_sink("large_orders", "rocketmq", {"namesrvAddr": NAMESERVER, "topic": "large-orders"})


@dp.append_flow(target="large_orders")
def large_orders_flow() -> DataFrame:
    """Orders that somebody should look at, as messages."""
    large = session().readStream.table("orders").where(F.col("amount") >= LARGE)
    return large.select(F.to_json(F.struct("product", "amount")).alias("body"), "keys")
