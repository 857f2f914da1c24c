"""The example that the demonstration shows."""

import importlib.util
import json
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import kappamq
from kappamq.testing import start_cluster
from tests.patience import PATIENT

EXAMPLES = Path(__file__).parents[2] / "examples"


def test_orders_pipeline(spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = importlib.util.spec_from_file_location("orders_pipeline", EXAMPLES / "orders_pipeline.py")
    assert found is not None
    assert found.loader is not None
    example = importlib.util.module_from_spec(found)
    found.loader.exec_module(example)
    with start_cluster() as cluster, kappamq.Producer(cluster.nameserver, group="shop", settings=PATIENT) as producer:
        for product, amount in [("tea", 3.5), ("coffee", 2.0), ("tea", 1.25)]:
            producer.send(kappamq.Message("orders", json.dumps({"product": product, "amount": amount}).encode()))
        producer.send(kappamq.Message("orders", b"not JSON"))
        coffee = {"product": "coffee", "orders": 1, "amount": 2.0}
        assert example.run(cluster.nameserver, tmp_path, spark) == [
            coffee,
            {"product": "tea", "orders": 2, "amount": 4.75},
        ]
        producer.send(kappamq.Message("orders", b'{"product": "tea", "amount": 5.25}'))
        assert example.run(cluster.nameserver, tmp_path, spark) == [
            coffee,
            {"product": "tea", "orders": 3, "amount": 10.0},
        ]
    assert "Orders by product" in capsys.readouterr().out
