"""Settings of a broker from files of both kinds, the environment and flags."""

from pathlib import Path

import pytest

from kappamq.cli.broker import broker_overrides, broker_settings
from kappamq.cli.options import Flush
from kappamq.errors import ConfigError

NOTHING = broker_overrides(listen=None, nameserver=None, data=None, name=None, cluster=None, flush=None, insecure=False)


def test_flags_become_settings() -> None:
    overrides = broker_overrides(
        listen="127.0.0.1:5",
        nameserver="127.0.0.1:1;127.0.0.1:2",
        data=Path("d"),
        name="b",
        cluster="c",
        flush=Flush.ASYNC,
        insecure=False,
    )
    settings = broker_settings(overrides, config=None)
    assert (settings.listen_host, settings.listen_port) == ("127.0.0.1", 5)
    assert settings.nameservers == ("127.0.0.1:1", "127.0.0.1:2")
    assert (settings.name, settings.cluster, settings.data, settings.flush) == ("b", "c", Path("d"), "async")


def test_flags_win_over_environment_wins_over_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "k.toml"
    file.write_text('[broker]\nname = "file"\ncluster = "file"\nlisten_port = 1\n[broker.store]\nretention_hours = 5\n')
    monkeypatch.setenv("KAPPAMQ_BROKER_CLUSTER", "environment")
    settings = broker_settings({**NOTHING, "name": "flag"}, config=file)
    assert (settings.name, settings.cluster, settings.listen_port) == ("flag", "environment", 1)
    assert settings.store.retention_hours == 5


def test_a_rocketmq_file_is_told_by_its_ending(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = tmp_path / "broker.conf"
    file.write_text("brokerName=conf\nlistenPort=7\nuseEpollNativeSelector=true\n")
    settings = broker_settings({**NOTHING, "listen_port": 8}, config=file)
    assert (settings.name, settings.listen_port) == ("conf", 8)
    assert "useEpollNativeSelector" in caplog.text


def test_an_open_address_needs_insecure() -> None:
    with pytest.raises(ConfigError, match="--insecure"):
        broker_settings({**NOTHING, "listen_host": "0.0.0.0"}, config=None)
    assert broker_settings({**NOTHING, "listen_host": "0.0.0.0", "insecure": True}, config=None).insecure
