"""What consumer groups gave up on: counted by group, topic, cause and age, and sent to its topic again, once."""

import re
from datetime import datetime
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING

from kappamq.model.names import DEAD_LETTER_PREFIX, dead_letter_topic
from kappamq.model.properties import Name
from kappamq.spark.jobs.frames import has_key, topic_table
from kappamq.spark.jobs.resending import mark, send_once

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def build(dead: "DataFrame") -> "DataFrame":
    """Dead letters with their group, the topic they came from and the id they had there."""
    from pyspark.sql import functions as F  # noqa: N812 - everybody calls it F.

    def value(name: str) -> "F.Column":  # type: ignore[name-defined]
        return F.col("properties").getItem(name)

    return dead.select(
        F.expr(f"substring(topic, {len(DEAD_LETTER_PREFIX) + 1})").alias("group"),
        F.coalesce(value(Name.DEAD_ORIGIN_TOPIC), value(Name.RETRY_TOPIC)).alias("originTopic"),
        F.coalesce(value(Name.DEAD_ORIGIN_MESSAGE_ID), value(Name.ORIGIN_MESSAGE_ID)).alias("originMessageId"),
        value(Name.CAUSE).alias("cause"),
        *("topic", "broker", "queueId", "queueOffset"),
        *("reconsumeTimes", "bornTimestamp", "storeTimestamp", "keys", "tags", "properties", "body", "messageId"),
    )


def choose(
    letters: "DataFrame",
    *,
    topics: tuple[str, ...] = (),
    causes: tuple[str, ...] = (),
    keys: tuple[str, ...] = (),
    start: datetime | None = None,
    end: datetime | None = None,
) -> "DataFrame":
    """Letters from some topics, whose cause contains one of some texts, with one of some keys, given up in some time.

    `start` is inclusive, `end` exclusive; what is not given does not matter.
    """
    from pyspark.sql import functions as F  # noqa: N812

    chosen = letters
    if topics:
        chosen = chosen.where(F.col("originTopic").isin(*topics))
    if causes:
        chosen = chosen.where(reduce(or_, (F.col("cause").contains(text) for text in causes)))
    if keys:
        chosen = chosen.where(has_key(keys))
    if start is not None:
        chosen = chosen.where(F.col("storeTimestamp") >= F.lit(start))
    if end is not None:
        chosen = chosen.where(F.col("storeTimestamp") < F.lit(end))
    return chosen


def summarise(letters: "DataFrame") -> "DataFrame":
    """How many dead letters of each group, topic, cause and age, with the first and last time."""
    from pyspark.sql import functions as F  # noqa: N812

    hours = (F.unix_timestamp(F.current_timestamp()) - F.unix_timestamp("storeTimestamp")) / 3600
    age = F.when(hours < 1, "under an hour").when(hours < 24, "under a day").when(hours < 168, "under a week")
    return (
        letters.withColumn("age", age.otherwise("over a week"))
        .groupBy("group", "originTopic", "cause", "age")
        .agg(
            F.count("*").alias("letters"),
            F.min("storeTimestamp").alias("first"),
            F.max("storeTimestamp").alias("last"),
            F.max("reconsumeTimes").alias("retries"),
        )
        .orderBy(F.desc("letters"), "group", "originTopic")
    )


def redrive(letters: "DataFrame") -> "DataFrame":
    """Rows that send dead letters to the topic they came from; letters of unknown origin are left out."""
    from pyspark.sql import functions as F  # noqa: N812

    return mark(letters.where("originTopic is not null"), "redrive", to=F.col("originTopic"))


def run(spark: "SparkSession", nameserver: str, *, groups: tuple[str, ...] = (), sends: bool = False) -> "DataFrame":
    """Summary of the dead letters of some groups, or of all; with `sends` each is sent to its topic again, once."""
    letters = read(spark, nameserver, groups).cache()
    if sends:
        send(spark, nameserver, letters)
    return summarise(letters)


def read(spark: "SparkSession", nameserver: str, groups: tuple[str, ...] = ()) -> "DataFrame":
    """Dead letters of some groups, or of all."""
    # A pattern, since a group that has given nothing up has no topic for it.
    pattern = "|".join(re.escape(dead_letter_topic(group)) for group in groups) or f"{DEAD_LETTER_PREFIX}.*"
    return build(topic_table(spark, nameserver, subscribePattern=pattern, includeSystemTopics="true"))


def send(spark: "SparkSession", nameserver: str, letters: "DataFrame") -> int:
    """Send letters to their topics again, and return how many: a letter that was sent before is passed over."""
    return send_once(spark, nameserver, redrive(letters))
