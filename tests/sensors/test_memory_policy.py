"""The policy of this process, which nobody has set; `test_rank_binding` sets others."""

from __future__ import annotations

import os

import pytest

from zerotools.sensors.memory_policy import memory_policy


def test_nothing_is_preferred_where_nobody_asked() -> None:
    try:
        found = memory_policy()
    except OSError as error:
        pytest.skip(f"memory policies cannot be asked for here: {os.strerror(error.errno or 0)}")
    assert found == ("default", frozenset())
