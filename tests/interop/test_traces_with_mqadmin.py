"""Our traces as RocketMQ's own tool, 5.5.0, shows them."""

from __future__ import annotations

import threading
import time

import pytest

import kappamq
from kappamq.testing import start_cluster
from tests.interop.artifacts import Unreachable
from tests.interop.conftest import skip_loudly
from tests.interop.mqadmin import MqAdmin

pytestmark = pytest.mark.timeout(600)


def test_mqadmin_shows_who_sent_and_who_handled() -> None:
    with start_cluster() as cluster:
        settings = kappamq.ProducerSettings(trace=True)
        with kappamq.Producer(cluster.nameserver, group="shop", settings=settings) as producer:
            receipt = producer.send(kappamq.Message("orders", b"hello", tags="new", keys="order-1"))
        handled = threading.Event()
        consuming = kappamq.ConsumerSettings(trace=True)
        with kappamq.PushConsumer(
            cluster.nameserver, group="readers", start_from="first", settings=consuming
        ) as consumer:
            consumer.add_handler("orders", lambda _: handled.set())
            consumer.start()
            assert handled.wait(60)
        try:
            with MqAdmin(cluster.nameserver) as admin:
                deadline = time.monotonic() + 60
                while True:
                    shown = admin.run("queryMsgTraceById", "-i", receipt.message_id)
                    rows = [line.split() for line in shown.splitlines()]
                    found = {(words[0], words[1]): words[-1] for words in rows if words and words[0] in ("Pub", "Sub")}
                    if len(found) == 2:
                        break
                    assert time.monotonic() < deadline, shown
        except Unreachable as fault:
            skip_loudly(fault)
    assert found == {("Pub", "shop"): "success", ("Sub", "readers"): "success"}
