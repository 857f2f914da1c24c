"""Message traces as a table: when each message was sent and consumed, how long it took, and whether it worked.

A trace message holds records that end with 0x02, of fields with 0x01 between them; the first names the kind:

Pub        time, region, group, topic, message id, tags, keys, store host, body bytes, cost, type, offset id, success, …
SubBefore  time, region, group, request id, message id, retries, keys
SubAfter   request id, message id, cost, success, keys, code, time, group (the last two may be missing)
"""

import re
from typing import TYPE_CHECKING

from kappamq.model.names import TRACE_TOPIC
from kappamq.spark.jobs.frames import topic_table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

WINDOW = "5 minutes"

_PLACES = {
    "Pub": {"at_ms": 1, "group": 3, "topic": 4, "messageId": 5, "tags": 6, "keys": 7, "cost_ms": 10, "success": 13},
    "SubBefore": {"at_ms": 1, "group": 3, "requestId": 4, "messageId": 5, "retries": 6, "keys": 7},
    "SubAfter": {"requestId": 1, "messageId": 2, "cost_ms": 3, "success": 4, "keys": 5, "at_ms": 7, "group": 8},
}
_NUMBERS = {"at_ms": "bigint", "cost_ms": "bigint", "retries": "int", "success": "boolean"}
_COLUMNS = ("at_ms", "group", "topic", "messageId", "tags", "keys", "requestId", "retries", "cost_ms", "success")


def build(messages: "DataFrame") -> "DataFrame":
    """One row for each trace record, with the columns that its kind has; other kinds are left out."""
    from pyspark.sql import functions as F  # noqa: N812 - everybody calls it F.

    records = messages.select(F.explode(F.split(F.col("body").cast("string"), "\x02")).alias("record"))
    fields = records.select(F.split("record", "\x01").alias("field"))
    kind = F.get("field", F.lit(0))

    def column(name: str) -> "F.Column":  # type: ignore[name-defined]
        value = F.lit(None).cast("string")
        for record, places in _PLACES.items():
            if name in places:
                value = F.when(kind == record, F.get("field", F.lit(places[name]))).otherwise(value)
        # RocketMQ: clients write the text null for what is missing.
        value = F.when(value.isin("null", ""), F.lit(None)).otherwise(value)
        return value.try_cast(_NUMBERS.get(name, "string")).alias(name)

    return fields.where(kind.isin(*_PLACES)).select(kind.alias("kind"), *(column(name) for name in _COLUMNS))


def summarise(traces: "DataFrame") -> "DataFrame":
    """Number, failures and cost by kind and group."""
    from pyspark.sql import functions as F  # noqa: N812

    return (
        traces.groupBy("kind", "group")
        .agg(
            F.count("*").alias("records"),
            F.count_if(~F.col("success")).alias("failed"),
            F.percentile_approx("cost_ms", 0.5).alias("p50_ms"),
            F.percentile_approx("cost_ms", 0.99).alias("p99_ms"),
        )
        .orderBy("kind", "group")
    )


def latencies(traces: "DataFrame", window: str = WINDOW) -> "DataFrame":
    """How long messages took from their sending to the start of their handling, by window of time, topic and group.

    A delivery whose sending was not traced counts, but has no latency.
    """
    from pyspark.sql import functions as F  # noqa: N812

    sent = traces.where("kind = 'Pub'").select("messageId", "topic", F.col("at_ms").alias("sent_ms"))
    ended = traces.where("kind = 'SubAfter'").select("requestId", "messageId", F.col("success").alias("worked"))
    begun = traces.where("kind = 'SubBefore'").select("requestId", "messageId", "group", "at_ms", "retries")
    deliveries = begun.join(sent.dropDuplicates(["messageId"]), "messageId", "left").join(
        ended.dropDuplicates(["requestId", "messageId"]), ["requestId", "messageId"], "left"
    )
    took = F.col("at_ms") - F.col("sent_ms")
    return (
        deliveries.groupBy(F.window(F.timestamp_millis("at_ms"), window).start.alias("from"), "topic", "group")
        .agg(
            F.count("*").alias("deliveries"),
            F.count_if(~F.col("worked")).alias("failed"),
            F.count_if(F.col("retries") > 0).alias("retried"),
            F.percentile_approx(took, 0.5).alias("p50_ms"),
            F.percentile_approx(took, 0.95).alias("p95_ms"),
            F.percentile_approx(took, 0.99).alias("p99_ms"),
        )
        .orderBy("from", "topic", "group")
    )


def run(
    spark: "SparkSession", nameserver: str, *, topic: str = TRACE_TOPIC, window: str = WINDOW
) -> "tuple[DataFrame, DataFrame]":
    """What `summarise` and `latencies` say of all traces."""
    # A pattern, since the topic is made by the first trace.
    found = topic_table(spark, nameserver, subscribePattern=re.escape(topic), includeSystemTopics="true")
    traces = build(found).cache()
    return summarise(traces), latencies(traces, window)
