"""Regenerating a committed case gives the committed truth, bit for bit."""

from pathlib import Path

import pytest

from ..golden_files import TORCH, digests

pytestmark = pytest.mark.torch


def test_a_regenerated_case_has_the_committed_truth(tmp_path: Path) -> None:
    from .cases import CASES  # imports torch, which only marked tests may
    from .generate import generate

    again = generate(CASES["fsdp2-dcp-w3"], tmp_path)
    committed = TORCH / "fsdp2-dcp-w3"
    assert digests(again / "truth.safetensors") == digests(committed / "truth.safetensors")


def test_every_case_is_committed() -> None:
    from .cases import CASES

    assert {path.name for path in TORCH.iterdir()} == set(CASES)
