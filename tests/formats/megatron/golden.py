"""Golden cases of Megatron-Core, and what the live program held."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

from tests.golden_files import GOLDEN, digests
from zerotools import formats
from zerotools.core.checkpoint import Checkpoint, Key
from zerotools.ops.execution.load_arrays import load_tensors

Digest = tuple[str, tuple[int, ...], str]
_LOCAL = re.compile(
    r"(decoder\.layers\.\d+|mtp\.layers\.\d+\.transformer_layer)"
    r"\.(input_layernorm|pre_mlp_layernorm)\.weight"
)
_FUSED = {
    "input_layernorm": "self_attention.linear_qkv.layer_norm_weight",
    "pre_mlp_layernorm": "mlp.linear_fc1.layer_norm_weight",
}


def cases(pattern: str = "*") -> list[str]:
    """`VERSION/NAME` of those that match."""
    found = GOLDEN.glob(f"megatron-core-*/{pattern}/checkpoint")
    return sorted(f"{path.parent.parent.name}/{path.parent.name}" for path in found)


def run_of(case: str) -> Path:
    return GOLDEN / case / "checkpoint"


def truth_of(case: str) -> dict[Key, Digest]:
    """By the names that the files have. In torch_dist, layers without latent attention have their
    norms under the names of Transformer Engine (`sharded_state_dict_keys_map` of the layer
    spec)."""
    found = digests(GOLDEN / case / "truth.safetensors")
    named: dict[Key, Digest] = {}
    for text, digest in found.items():
        name, role = text.split("|")
        match = _LOCAL.fullmatch(name)
        fused = match and f"{match[1]}.self_attention.linear_qkv.weight" in {
            each.split("|")[0] for each in found
        }
        if (
            match
            and fused
            and not case.partition("/")[2].startswith(("legacy", "fsdp", "hub-fsdp"))
        ):
            name = f"{match[1]}.{_FUSED[match[2]]}"
        if name.endswith("router.expert_bias"):
            role = "buffer"
        named[Key(name, role)] = digest
    return named


def read_digests(checkpoint: Checkpoint) -> dict[Key, Digest]:
    """The same of what is read, but for what names no parameter."""
    keys = {k: t for k, t in checkpoint.tensors.items() if k.role != "state"}
    arrays = load_tensors(checkpoint, {key: tensor.dtype for key, tensor in keys.items()})
    return {
        key: (
            tensor.dtype.safetensors or "",
            tensor.shape,
            hashlib.sha256(arrays[key].tobytes()).hexdigest(),
        )
        for key, tensor in keys.items()
    }


def read_case(case: str) -> Checkpoint:
    return formats.read(run_of(case))
