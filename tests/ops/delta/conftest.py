"""Two models and their delta, for the tests of what applies it."""

from __future__ import annotations

from pathlib import Path

import pytest

import zerotools
from tests.ops.delta.pairs import stepped, weights, write_model


@pytest.fixture
def pair(tmp_path: Path) -> tuple[Path, Path, Path]:
    """Models A and B, and their delta."""
    tensors = weights()
    a = write_model(tmp_path / "a", tensors)
    b = write_model(tmp_path / "b", stepped(tensors, 0.02), files=3, vocab_size=7)
    out = tmp_path / "ab.delta"
    zerotools.delta(a, b, out)
    return a, b, out
