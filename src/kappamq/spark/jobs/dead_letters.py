"""What consumer groups gave up on: counted by group, topic, cause and age, and sent to its topic again, once."""

from typing import TYPE_CHECKING

from kappamq.model.names import DEAD_LETTER_PREFIX, dead_letter_topic
from kappamq.model.properties import Name
from kappamq.spark.jobs.frames import topic_table
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
    """Summary of the dead letters of some groups, or of all; with `sends` each is sent to its topic again.

    A letter is sent once: a second run passes over those that the first one sent.
    """
    if groups:
        subject = {"subscribe": ",".join(dead_letter_topic(group) for group in groups)}
    else:
        subject = {"subscribePattern": f"{DEAD_LETTER_PREFIX}.*", "includeSystemTopics": "true"}
    letters = build(topic_table(spark, nameserver, **subject)).cache()
    if sends:
        send_once(spark, nameserver, redrive(letters))
    return summarise(letters)
