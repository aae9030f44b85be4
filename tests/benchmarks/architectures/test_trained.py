"""The most telling rows of the table of architectures; all others are in benchmarks/results."""

from __future__ import annotations

from pathlib import Path

import pytest

pytestmark = [pytest.mark.torch, pytest.mark.full]


@pytest.mark.dear(30, "three models of transformers through two ranks each")
@pytest.mark.parametrize(
    "name",
    [
        pytest.param("gemma3", id="a wrapper of several models"),
        pytest.param("jamba", id="experts, recurrent layers, two-dimensional A_log"),
        pytest.param("mamba2", id="an infinite number in its config"),
    ],
)
def test_a_directory_is_trained_as_plain_torch_would_and_comes_back(
    tmp_path: Path, name: str
) -> None:
    from benchmarks.architectures.trained import examine

    row = examine(name, tmp_path)
    assert row.holds, row
