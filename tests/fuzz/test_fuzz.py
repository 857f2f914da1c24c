"""A brief run of the fuzzer, so that it does not rot; `make fuzz` runs it for long under AddressSanitizer."""

import pytest

pytest.importorskip("kappamq.kernel._compiled", reason="the compiled kernel is not built")
pytest.importorskip("kappamq.kernel._columns", reason="the compiled reader of records is not built")
pytest.importorskip("kappamq.kernel._verify", reason="the compiled verifier is not built")
pytest.importorskip("kappamq.kernel._client", reason="the compiled client side is not built")
pytest.importorskip("kappamq.net._sockets", reason="the compiled half of turns is not built")
pytest.importorskip("kappamq.store._syncing", reason="the compiled syncer is not built")

from tests.fuzz.__main__ import main


def test_a_brief_run_finds_no_difference(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["2", "20250101"]) == 0
    assert "no difference" in capsys.readouterr().out
