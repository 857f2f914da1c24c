"""Errors and codes: the table is complete and reads both ways."""

import pytest

from kappamq import errors
from kappamq.wire.codes import ResponseCode
from kappamq.wire.command import Command
from kappamq.wire.faults import CODE_BY_ERROR, ERROR_BY_CODE, code_of, error_of


@pytest.mark.parametrize("kind", [kind for kind in vars(errors).values() if isinstance(kind, type)])
def test_every_error_has_a_code(kind: type[errors.KappaError]) -> None:
    fault = kind("x", log_offset=1) if kind is errors.CorruptRecord else kind("x")
    assert code_of(fault) != ResponseCode.SUCCESS


def test_what_a_server_says_a_client_raises() -> None:
    for kind, code in CODE_BY_ERROR.items():
        if issubclass(kind, errors.Refused) and kind in ERROR_BY_CODE.values():
            assert ERROR_BY_CODE[code] is kind


def test_an_unknown_code_raises_refused_with_the_remark() -> None:
    fault = error_of(Command(604, remark="not now"), "1.2.3.4:5")
    assert type(fault) is errors.Refused
    assert fault.code == 604
    assert "not now" in str(fault)
    assert code_of(fault) == 604
