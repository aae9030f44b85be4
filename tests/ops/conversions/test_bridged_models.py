"""Models that Megatron-Bridge and mcore-bridge put into Megatron-Core, cut over ranks and saved:
they are again what the program was given, bit by bit, and transformers computes of them what
Megatron computed.

`model` of a case is the model of the Hub, `logits.safetensors` Megatron's own forward pass in 32
bits. Sums are made in another order there, so logits are compared within TOLERANCE.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from tests.golden_files import GOLDEN
from zerotools import formats
from zerotools.core import dtypes
from zerotools.core.checkpoint import Checkpoint
from zerotools.ops.conversions import consolidate
from zerotools.ops.conversions.conversion import perform_conversion
from zerotools.ops.execution.load_arrays import load_tensors
from zerotools.ops.execution.tile_workers import MemoryBudget
from zerotools.ops.weights.convert_layout import MapRequest, mapped_checkpoint

pytest.importorskip("transformers")
pytestmark = pytest.mark.torch

PROGRAMS = ("megatron-bridge-0.3.1", "mcore-bridge-1.6.5")
CASES = sorted(
    f"{program}/{path.name}"
    for program in PROGRAMS
    for path in (GOLDEN / program).glob("*")
    if path.name != "lora"  # an adapter alone
)
TOLERANCE = 3e-6


def arrays_of(checkpoint: Checkpoint) -> dict[str, np.ndarray]:
    types = dict.fromkeys(checkpoint.tensors, dtypes.FLOAT32)
    return {key.name: array for key, array in load_tensors(checkpoint, types).items()}


def assert_same(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> None:
    assert set(one) == set(other)
    for name, value in one.items():
        assert value.shape == other[name].shape, name
        assert value.tobytes() == other[name].tobytes(), name


def exported(case: str, out: Path) -> None:
    wanted = consolidate.Options(dtype="fp32", mapping=MapRequest(to="hf"))
    source = GOLDEN / case / "checkpoint"
    conversion = consolidate.prepare_export(source, out, wanted, config_dir=GOLDEN / case / "model")
    perform_conversion(conversion, budget=MemoryBudget(), overwrite=False, verify=True)


@pytest.mark.parametrize("case", CASES)
def test_the_program_was_given_what_is_made_of_its_checkpoint(case: str, tmp_path: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    out = tmp_path / "out"
    exported(case, out)
    found, given = (
        load_file(path / "model.safetensors") for path in (out, GOLDEN / case / "model")
    )
    assert_same(found, given)  # of Gemma without a head, which its config.json does not say
    model, report = AutoModelForCausalLM.from_pretrained(
        out, output_loading_info=True, attn_implementation="eager"
    )
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    computed = load_file(GOLDEN / case / "logits.safetensors")
    expected = {name: torch.from_numpy(value) for name, value in computed.items()}
    with torch.no_grad():
        logits = model.eval()(expected["tokens"]).logits
    torch.testing.assert_close(logits, expected["logits"], rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("case", CASES)
def test_the_way_back_makes_the_tensors_that_the_program_saved(case: str) -> None:
    model = formats.read(GOLDEN / case / "model")
    request = MapRequest(to="megatron", arguments={"vocab_multiple": 1})
    made = mapped_checkpoint(model, request).checkpoint
    saved = formats.read(GOLDEN / case / "checkpoint")
    back = mapped_checkpoint(made, MapRequest(to="hf")).checkpoint
    assert_same(arrays_of(back), arrays_of(model))
    assert_same(_apart(arrays_of(made)), _named_as_we_do(arrays_of(saved)))


def test_a_norm_that_two_ranks_wrote_leaves_bytes_that_are_passed_over() -> None:
    saved = formats.read(GOLDEN / "mcore-bridge-1.6.5/glm4/checkpoint")
    assert not saved.problems
    assert any(
        "after the last value of __0_1.distcp there are 1641" in n for n in saved.origin.notes
    )


def _named_as_we_do(tensors: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Two norms of GLM 4 have other names in mcore-bridge than those that we write."""
    moved = {
        "self_attention.post_self_attn_layernorm.": "post_self_attn_layernorm.",
        "mlp.post_mlp_layernorm.": "post_mlp_layernorm.",
    }
    found = {}
    for name, value in tensors.items():
        for theirs, ours in moved.items():
            name = name.replace(theirs, ours)
        found[name] = value
    return found


def _apart(tensors: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """A tensor for each layer and each expert, as checkpoints are read."""
    found: dict[str, np.ndarray] = {}
    for name, value in tensors.items():
        _, layers, rest = name.partition("decoder.layers.")
        if layers and not rest[0].isdigit():
            found |= {f"{layers}{at}.{rest}": each for at, each in enumerate(value)}
        elif ".experts.experts." in name:
            before, after = name.split(".experts.experts.")
            for at, each in enumerate(value):
                found[f"{before}.experts.local_experts.{at}.{after}"] = each
        else:
            found[name] = value
    return found
