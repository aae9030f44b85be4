from __future__ import annotations

from pathlib import Path

import pytest

from zerotools.core.errors import BadRequest
from zerotools.jobs.text.expand_home import expand_home


def test_a_home_directory_is_put_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/mine")
    assert expand_home("~/runs") == Path("/home/mine/runs")
    assert expand_home("runs/~x") == Path("runs/~x")


def test_one_that_nobody_has_is_said() -> None:
    with pytest.raises(BadRequest, match=r"no home directory ~nobody-of-that-name is known"):
        expand_home("~nobody-of-that-name/runs")
