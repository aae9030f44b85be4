"""torch's own DCP loads the model of a thinned checkpoint, and does not find the optimizer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.golden_files import TORCH
from tests.ops.thinning.made import copy_of, thinned
from zerotools.io.distcp.metadata import Metadata, read_metadata

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")


def _empty(metadata: Metadata, keys: list[str]) -> dict[str, Any]:
    """A flat state dict to be filled."""
    torch = pytest.importorskip("torch")
    return {
        key: torch.full(saved.shape, 7, dtype=getattr(torch, saved.dtype.name))
        for key in keys
        for saved in (metadata.tensors[key],)
    }


@pytest.mark.torch
@pytest.mark.parametrize("case", ["continued/fsdp2-dcp", "torch-2.13.0/fsdp2-tp-dcp-w4"])
def test_torch_loads_the_model_and_no_optimizer(case: str, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    from torch.distributed import checkpoint as dcp
    from torch.distributed.checkpoint.api import CheckpointException

    path = copy_of(case, tmp_path)
    directory = next(path.rglob(".metadata")).parent
    before = read_metadata(directory / ".metadata")
    of_model = [key for key in before.tensors if not key.startswith("optim")]
    of_optimizer = [key for key in before.tensors if key.startswith("optim")]
    assert of_model
    assert of_optimizer
    expected = _empty(before, of_model)
    dcp.load(expected, checkpoint_id=directory, no_dist=True)
    thinned(path)
    after = read_metadata(directory / ".metadata")
    assert list(after.tensors) == of_model
    found = _empty(before, of_model)
    dcp.load(found, checkpoint_id=directory, no_dist=True)
    assert all(torch.equal(found[key], expected[key]) for key in of_model)
    with pytest.raises(CheckpointException, match="Missing key in checkpoint state_dict"):
        dcp.load(_empty(before, of_optimizer), checkpoint_id=directory, no_dist=True)


@pytest.mark.torch
def test_torch_loads_what_is_left_of_a_file(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    whole = torch.load(TORCH / "training-file" / "checkpoint" / "checkpoint.pt")
    path = copy_of("torch-2.13.0/training-file", tmp_path)
    thinned(path)
    left = torch.load(path / "checkpoint.pt")
    assert left.keys() == whole.keys() - {"optimizer"}
    assert all(torch.equal(left["model"][name], whole["model"][name]) for name in whole["model"])


@pytest.mark.torch
def test_a_trainers_directory_is_still_loaded_by_from_pretrained(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    from transformers import AutoModelForCausalLM

    path = copy_of("continued/hf-trainer", tmp_path) / "checkpoint-3"
    before = AutoModelForCausalLM.from_pretrained(path).state_dict()
    thinned(path)
    assert not (path / "optimizer.pt").exists()
    after = AutoModelForCausalLM.from_pretrained(path).state_dict()
    assert all(torch.equal(after[name], value) for name, value in before.items())
