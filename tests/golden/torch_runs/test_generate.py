"""Regenerating a committed case gives the committed one, with the values of this processor."""

from pathlib import Path

import pytest

from tests.golden_files import TORCH
from tests.regenerated import differences

pytestmark = pytest.mark.torch


def test_a_regenerated_case_is_the_committed_one(tmp_path: Path) -> None:
    from .cases import CASES  # imports torch, which only marked tests may
    from .generate import generate

    name = "fsdp2-dcp-w3"
    assert differences(generate(CASES[name], tmp_path), TORCH / name) == []


def test_every_case_is_committed() -> None:
    from .cases import CASES

    assert {path.name for path in TORCH.iterdir()} == set(CASES)
