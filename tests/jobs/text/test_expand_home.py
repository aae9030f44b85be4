from __future__ import annotations

from pathlib import Path

import pytest

from zerotools.core.errors import BadRequest
from zerotools.jobs.text.expand_home import expanded


def test_a_home_directory_is_put_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/mine")
    assert expanded("~/runs") == Path("/home/mine/runs")
    assert expanded("runs/~x") == Path("runs/~x")


def test_one_that_nobody_has_is_said() -> None:
    with pytest.raises(BadRequest, match=r"no home directory ~nobody-of-that-name is known"):
        expanded("~nobody-of-that-name/runs")
