"""PEFT judges: what is merged is what `merge_and_unload` makes, from a run that holds its base and
from an adapter beside one; what is exported alone is what `save_pretrained` writes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.ops.weights.peft_models import CASES, Case, Trained, drawn, train
from zerotools.public import consolidate, diff

pytestmark = [pytest.mark.torch, pytest.mark.peft]
# Of each type, the widest step between two numbers, relative to them.
STEPS = {"float32": 1e-6, "bfloat16": 2.0**-7, "float16": 2.0**-10}
NAMES = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}


def is_near(trained: Trained, name: str, got: Any, dtype: str) -> bool:
    """Whether a weight is that of PEFT but for a step of its type, of the largest of those numbers
    that were added: PEFT rounds some products before it adds them."""
    wanted, before = trained.merged[name].double(), trained.before.get(name)
    size = wanted.abs()
    if before is not None and before.shape == size.shape:
        size = size.maximum(before.double().abs()).maximum((wanted - before.double()).abs())
    return bool(((got.double() - wanted).abs() <= STEPS[dtype] * size + 1e-7).all())


def check_merged(trained: Trained, out: Path, case: Case) -> None:
    from safetensors.torch import load_file
    from transformers import AutoModelForCausalLM

    found = load_file(out / "model.safetensors")
    for name, got in found.items():
        if name in trained.merged:
            assert is_near(trained, name, got, case.dtype), name
    model, info = AutoModelForCausalLM.from_pretrained(out, output_loading_info=True)
    assert not info["missing_keys"], info
    assert not info["unexpected_keys"], info
    for name, got in model.state_dict().items():
        assert is_near(trained, name, got, case.dtype), name


def check_all(case: Case, directory: Path) -> None:
    from safetensors.torch import load_file

    trained = train(case, directory)
    dtype = NAMES[case.dtype]
    consolidate(trained.run, directory / "of-run", dtype=dtype, adapter_config=trained.adapter)
    check_merged(trained, directory / "of-run", case)
    consolidate(trained.adapter, directory / "of-both", base=trained.base, dtype=dtype)
    check_merged(trained, directory / "of-both", case)
    alone = directory / "alone"
    consolidate(trained.run, alone, adapter_only=True, adapter_config=trained.adapter)
    ours = load_file(alone / "adapter_model.safetensors")
    theirs = load_file(trained.adapter / "adapter_model.safetensors")
    assert set(ours) == set(theirs)
    assert all(ours[name].equal(theirs[name]) for name in theirs)
    if case.model["model_type"] != "mixtral":  # whose experts the Hub has in other tensors
        for merged in (directory / "of-both", trained.saved):
            compared = diff(merged, trained.base, adapter=trained.adapter, role=["param"])
            assert compared.is_equal, (merged, compared.worst(3), compared.notes)


@pytest.mark.parametrize("name", sorted(CASES))
@pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing. is deprecated:FutureWarning")
def test_peft_would_have_merged_and_saved_the_same(name: str, tmp_path: Path) -> None:
    check_all(CASES[name], tmp_path)


@pytest.mark.full
@pytest.mark.parametrize("seed", range(60))
@pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing. is deprecated:FutureWarning")
def test_of_many_configs(seed: int, tmp_path: Path) -> None:
    check_all(drawn(seed), tmp_path)
