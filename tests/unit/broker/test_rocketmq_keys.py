"""RocketMQ's names of settings: files, showing, changing."""

from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from kappamq.broker.rocketmq_keys import (
    CHANGEABLE,
    CONSTANTS,
    KEYS,
    parse_changes,
    settings_from_conf,
    shown_settings,
)
from kappamq.broker.settings import BrokerSettings
from kappamq.errors import ConfigError, NotPermitted
from kappamq.settings import load
from kappamq.store.settings import StoreSettings

EXAMPLE = """
# a master
brokerClusterName = DefaultCluster
brokerName=broker-a
brokerId=0
brokerRole=ASYNC_MASTER
brokerIP1=127.0.0.1
listenPort=10921
namesrvAddr=127.0.0.1:9876;127.0.0.1:9877
storePathRootDir=/data/store
storePathCommitLog=/data/store/commitlog
flushDiskType=SYNC_FLUSH
deleteWhen=04;16
fileReservedTime=48
mappedFileSizeCommitLog=1048576
diskMaxUsedSpaceRatio=88
autoCreateTopicEnable=false
transactionCheckInterval=1000
registerNameServerPeriod=20000
sendMessageThreadPoolNums=4
"""


def conf(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "broker.conf"
    path.write_text(text)
    return path


def test_a_file_of_rocketmq_becomes_settings(tmp_path: Path) -> None:
    values, ignored = settings_from_conf(conf(tmp_path, EXAMPLE))
    settings = load(BrokerSettings, section="broker", overrides=values)
    assert (settings.name, settings.cluster, settings.listen_port) == ("broker-a", "DefaultCluster", 10921)
    assert settings.nameservers == ("127.0.0.1:9876", "127.0.0.1:9877")
    assert (settings.data, settings.flush, settings.auto_create_topics) == (Path("/data/store"), "durable", False)
    assert (settings.register_seconds, settings.transaction_check_interval_ms) == (20.0, 1000)
    assert (settings.store.delete_hours, settings.store.retention_hours) == ((4, 16), 48)
    assert settings.store.segment_bytes == 1048576
    assert ignored == ["brokerRole", "sendMessageThreadPoolNums"]


def test_ratios_that_rocketmq_allows_lift_those_above_them(tmp_path: Path) -> None:
    values, _ = settings_from_conf(conf(tmp_path, "diskMaxUsedSpaceRatio=88"))
    store = load(BrokerSettings, section="broker", overrides=values).store
    assert (store.disk_delete_ratio, store.disk_force_ratio, store.disk_full_ratio) == (0.88, 0.88, 0.90)


def test_a_full_disk_may_be_told_to_keep_young_files(tmp_path: Path) -> None:
    values, ignored = settings_from_conf(conf(tmp_path, "cleanFileForciblyEnable=false"))
    assert not load(BrokerSettings, section="broker", overrides=values).store.disk_force_delete
    assert not ignored


@pytest.mark.parametrize(
    "text",
    [
        "listenPort=many",
        "listenPort=70000",
        "flushDiskType=SOMETIMES",
        "autoCreateTopicEnable=perhaps",
        "brokerName=",
        "storePathCommitLog=/elsewhere",
        "storePathRootDir=/data\nstorePathCommitLog=/elsewhere/commitlog",
    ],
)
def test_bad_values_are_refused_with_their_key(tmp_path: Path, text: str) -> None:
    with pytest.raises(ConfigError, match=text.split("\n")[-1].split("=")[0]):
        settings_from_conf(conf(tmp_path, text))


def test_every_key_names_a_field_and_reads_what_it_writes() -> None:
    settings = BrokerSettings(name="b", data=Path("/secret/place"), nameservers=("a:1", "b:2"))
    for name, key in KEYS.items():
        holder: Any = settings.store if key.field.startswith("store.") else settings
        value = getattr(holder, key.field.removeprefix("store."))
        if value is not None and key.is_shown:
            assert key.read(key.write(value)) == value, name


def test_paths_are_never_shown() -> None:
    shown = shown_settings(BrokerSettings(name="b", data=Path("/secret/place")), port=10911)
    assert "secret" not in str(shown)
    assert not any("path" in name.lower() for name in shown)
    assert not any("path" in name.lower() for name in CHANGEABLE)


def test_the_tools_of_rocketmq_find_what_they_read() -> None:
    shown = shown_settings(BrokerSettings(name="b", listen_port=0), port=4711)
    assert (shown["listenPort"], shown["haListenPort"], shown["brokerIP1"]) == ("4711", "4712", "127.0.0.1")
    assert (shown["brokerRole"], shown["flushDiskType"], shown["fileReservedTime"]) == (
        "ASYNC_MASTER",
        "SYNC_FLUSH",
        "72",
    )
    assert CONSTANTS.items() <= shown.items()


def test_changes_are_typed() -> None:
    changes = parse_changes("longPollingEnable=false\nfileReservedTime=5\nbrokerPermission=4\n")
    assert changes == {"long_polling": False, "store.retention_hours": 5, "permission": 4}
    settings = BrokerSettings(name="b")
    changed = replace(
        settings,
        long_polling=cast(bool, changes["long_polling"]),
        store=replace(StoreSettings(), retention_hours=cast(float, changes["store.retention_hours"])),
    )
    assert shown_settings(changed, port=1)["longPollingEnable"] == "false"
    assert shown_settings(changed, port=1)["fileReservedTime"] == "5"


@pytest.mark.parametrize("name", ["storePathRootDir", "brokerName", "nonsense", "namesrvAddr", "bindAddress"])
def test_what_is_fixed_at_start_cannot_be_changed(name: str) -> None:
    with pytest.raises(NotPermitted, match=name):
        parse_changes(f"traceOn=true\n{name}=x")


def test_a_bad_value_of_a_change_is_named() -> None:
    with pytest.raises(ConfigError, match="shortPollingTimeMills"):
        parse_changes("shortPollingTimeMills=soon")


def test_these_can_be_changed_while_the_broker_runs() -> None:
    assert {
        "autoCreateSubscriptionGroup",
        "autoCreateTopicEnable",
        "brokerPermission",
        "enablePropertyFilter",
        "fileReservedTime",
        "longPollingEnable",
        "maxMessageSize",
        "maxTransferCountOnMessageInMemory",
        "shortPollingTimeMills",
        "slaveReadEnable",
        "traceOn",
        "transactionCheckInterval",
        "transactionCheckMax",
        "transactionTimeOut",
        "useServerSideResetOffset",
    } == CHANGEABLE
