"""RocketMQ's broker.conf: every key that we claim to know leads to a setting, with a value of the right type."""

from pathlib import Path

import pytest

from kappamq.broker.settings import BrokerSettings
from kappamq.cli.rocketmq_conf import BROKER_KEYS
from kappamq.errors import ConfigError
from kappamq.settings import load, load_properties

CONF = """
# A master
brokerClusterName=DefaultCluster
brokerName=broker-a
brokerId=0
bindAddress=127.0.0.1
listenPort=10911
brokerIP1=192.168.1.20
namesrvAddr=127.0.0.1:9876;127.0.0.1:9877
storePathRootDir=/data/rocketmq
flushDiskType=ASYNC_FLUSH
deleteWhen=04;16
fileReservedTime=48
diskMaxUsedSpaceRatio=70
mappedFileSizeCommitLog=1073741824
registerNameServerPeriod=20000
autoCreateTopicEnable=false
messageDelayLevel=1s 5s
brokerRole=ASYNC_MASTER
"""


def from_conf(tmp_path: Path, text: str) -> tuple[BrokerSettings, list[str]]:
    file = tmp_path / "broker.conf"
    file.write_text(text)
    values, ignored = load_properties(file, BROKER_KEYS)
    return load(BrokerSettings, section="broker", values=values), ignored


def test_a_usual_file(tmp_path: Path) -> None:
    settings, ignored = from_conf(tmp_path, CONF)
    assert ignored == ["brokerRole"]
    assert (settings.name, settings.cluster, settings.listen_port) == ("broker-a", "DefaultCluster", 10911)
    assert settings.nameservers == ("127.0.0.1:9876", "127.0.0.1:9877")
    assert settings.data == Path("/data/rocketmq")
    assert settings.flush == "async"
    assert settings.advertised_host == "192.168.1.20"
    assert settings.store.delete_hours == (4, 16)
    assert (settings.store.retention_hours, settings.store.disk_delete_ratio) == (48.0, 0.7)
    assert settings.store.segment_bytes == 1 << 30
    assert settings.register_seconds == 20.0
    assert not settings.auto_create_topics
    assert settings.delay_levels == "1s 5s"


def test_every_key_leads_to_a_setting() -> None:
    for name, rule in BROKER_KEYS.items():
        target: object = BrokerSettings()
        for part in rule.key.split("."):
            assert hasattr(target, part), f"{name} → {rule.key}"
            target = getattr(target, part)


@pytest.mark.parametrize(
    "line",
    [
        "flushDiskType=NEVER",
        "listenPort=many",
        "autoCreateTopicEnable=maybe",
        "deleteWhen=x",
        "diskMaxUsedSpaceRatio=x",
        "registerNameServerPeriod=x",
    ],
)
def test_wrong_values_are_named(tmp_path: Path, line: str) -> None:
    with pytest.raises(ConfigError, match=line.partition("=")[0]):
        from_conf(tmp_path, line)
