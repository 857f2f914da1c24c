"""Settings from a file, the environment and flags; RocketMQ's `key=value` files."""

from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Literal

import pytest

from kappamq.errors import ConfigError
from kappamq.settings import (
    PropertyRule,
    check_listen_host,
    is_loopback,
    load,
    load_properties,
    parse_properties,
)


class Colour(StrEnum):
    RED = "red"
    BLUE = "blue"


@dataclass(frozen=True, kw_only=True)
class Inner:
    segment_bytes: int = 1 << 30
    ratio: float = 0.75


@dataclass(frozen=True, kw_only=True)
class Example:
    name: str = "broker-a"
    port: int = 10911
    flush: Literal["durable", "async"] = "durable"
    colour: Colour = Colour.RED
    is_open: bool = False
    data: Path = Path("data")
    kv_path: Path | None = None
    limit: int | None = None
    hours: tuple[int, ...] = (4,)
    inner: Inner = field(default_factory=Inner)

    def __post_init__(self) -> None:
        if self.port == 666:
            raise ValueError("666 is taken")


def from_toml(tmp_path: Path, text: str, **more: object) -> Example:
    file = tmp_path / "kappamq.toml"
    file.write_text(text)
    return load(Example, section="broker", file=file, **more)  # type: ignore[arg-type]


def from_environment(**variables: str) -> Example:
    environment = {f"KAPPAMQ_BROKER_{name}": value for name, value in variables.items()}
    return load(Example, section="broker", environment=environment)


def test_defaults() -> None:
    assert load(Example, section="broker") == Example()


def test_every_kind_of_value_from_a_file(tmp_path: Path) -> None:
    text = """
        [broker]
        name = "b"
        port = 1
        flush = "async"
        colour = "blue"
        is_open = true
        data = "~/d"
        kv_path = "kv.json"
        limit = 5
        hours = [1, 2]
        [broker.inner]
        segment_bytes = "64MiB"
        ratio = 1
        [nameserver]
        whatever = "is not ours"
    """
    assert from_toml(tmp_path, text) == Example(
        name="b",
        port=1,
        flush="async",
        colour=Colour.BLUE,
        is_open=True,
        data=Path.home() / "d",
        kv_path=Path("kv.json"),
        limit=5,
        hours=(1, 2),
        inner=Inner(segment_bytes=64 << 20, ratio=1.0),
    )


def test_every_kind_of_value_from_the_environment() -> None:
    settings = from_environment(
        PORT="1_000", IS_OPEN="yes", HOURS="1; 2", LIMIT="none", INNER_SEGMENT_BYTES="2 GiB", INNER_RATIO="0.5"
    )
    assert settings == Example(
        port=1000, is_open=True, hours=(1, 2), limit=None, inner=Inner(segment_bytes=2 << 30, ratio=0.5)
    )


def test_flags_win_over_environment_wins_over_file(tmp_path: Path) -> None:
    text = '[broker]\nname = "file"\nport = 1\nflush = "async"\n'
    settings = from_toml(
        tmp_path,
        text,
        environment={"KAPPAMQ_BROKER_NAME": "environment", "KAPPAMQ_BROKER_PORT": "2", "PATH": "x"},
        overrides={"name": "flag", "limit": None, "inner": {"ratio": 0.1}},
    )
    assert (settings.name, settings.port, settings.flush) == ("flag", 2, "async")
    assert settings.inner == Inner(ratio=0.1)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[broker]\nprot = 1", r"setting broker.prot in .*kappamq.toml is unknown: did you mean port\?"),
        ("[broker.inner]\nrati = 1", r"broker.inner.rati in .* is unknown: did you mean ratio\?"),
        ("[broker.iner]\nratio = 1", r"broker.iner is unknown: did you mean inner\?"),
        ("[borker]\nport = 1", r"section \[borker\] .* did you mean \[broker\]\?"),
        ("[broker]\nzzz = 1", r"is unknown: known are colour, data"),
        ("[broker]\nport = 'x'", r"broker.port in .* is 'x', which is not valid: write a whole number"),
        ("[broker]\nport = 1.5", "write a whole number"),
        ("[broker]\nport = true", "write a number"),
        ("[broker]\nname = 5", "write text"),
        ("[broker]\nflush = 'never'", "choose one of durable, async"),
        ("[broker]\ncolour = 'green'", "choose one of red, blue"),
        ("[broker]\nis_open = 'perhaps'", "write true or false"),
        ("[broker]\nhours = 4", "write a list"),
        ("[broker]\ndata = 4", "write a Path"),
        ("[broker.port]\nx = 4", "broker.port is one value"),
        ("[broker]\nport = 666", "666 is taken"),
        ("broker = 1", "is not a section"),
        ("not toml", "is not TOML"),
    ],
)
def test_mistakes_are_named(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        from_toml(tmp_path, text)


def test_a_misspelt_variable_is_named() -> None:
    with pytest.raises(ConfigError, match="KAPPAMQ_BROKER_PROT is unknown: did you mean KAPPAMQ_BROKER_PORT"):
        from_environment(PROT="1")
    with pytest.raises(ConfigError, match="KAPPAMQ_BROKER_PORT is 'x'"):
        from_environment(PORT="x")


def test_a_missing_setting_is_named() -> None:
    @dataclass(frozen=True)
    class Needy:
        token: str

    with pytest.raises(ConfigError, match=r"setting broker.token is missing: set KAPPAMQ_BROKER_TOKEN"):
        load(Needy, section="broker")


def test_unreadable_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot read settings file"):
        load(Example, section="broker", file=tmp_path / "missing.toml")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\xff")
    with pytest.raises(ConfigError, match="not UTF-8"):
        load(Example, section="broker", file=tmp_path / "binary")
    (tmp_path / "large").write_bytes(b"#" * (1 << 21))
    with pytest.raises(ConfigError, match="larger than"):
        load(Example, section="broker", file=tmp_path / "large")


def test_java_properties_syntax() -> None:
    text = "# comment\n! comment\n\n  brokerName = a b \nport:10911\nflag\n"
    text += "list=a,\\\n    b\nu=\\u00e9\\t\npath=c\\:\\\\x\nend=1\\"
    assert parse_properties(text) == {
        "brokerName": "a b",
        "port": "10911",
        "flag": "",
        "list": "a,b",
        "u": "é\t",
        "path": "c:\\x",
        "end": "1",
    }


def test_a_rocketmq_file_is_translated(tmp_path: Path) -> None:
    file = tmp_path / "broker.conf"
    file.write_text("brokerName=b\nflushDiskType=SYNC_FLUSH\nmappedFileSizeCommitLog=1024\nuseEpoll=true\n")
    rules = {
        "brokerName": PropertyRule("name"),
        "flushDiskType": PropertyRule("flush", {"SYNC_FLUSH": "durable"}.__getitem__),
        "mappedFileSizeCommitLog": PropertyRule("inner.segment_bytes", int),
    }
    values, ignored = load_properties(file, rules)
    assert values == {"name": "b", "flush": "durable", "inner": {"segment_bytes": 1024}}
    assert ignored == ["useEpoll"]
    environment = {"KAPPAMQ_BROKER_NAME": "environment"}
    settings = load(Example, section="broker", values=values, environment=environment)
    assert (settings.name, settings.flush, settings.inner.segment_bytes) == ("environment", "durable", 1024)
    file.write_text("mappedFileSizeCommitLog=many")
    with pytest.raises(ConfigError, match=r"mappedFileSizeCommitLog in .* has the value 'many'"):
        load_properties(file, rules)
    file.write_text("flushDiskType=NEVER")
    with pytest.raises(ConfigError, match="flushDiskType"):
        load_properties(file, rules)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "::1", "[::1]", "localhost"])
def test_loopback_needs_no_flag(host: str) -> None:
    assert is_loopback(host)
    check_listen_host(host, insecure=False)


@pytest.mark.parametrize("host", ["", "0.0.0.0", "::", "10.0.0.1", "example.com"])
def test_other_addresses_need_insecure(host: str) -> None:
    with pytest.raises(ConfigError, match="--insecure"):
        check_listen_host(host, insecure=False)
    check_listen_host(host, insecure=True)
