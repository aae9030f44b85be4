"""One `Case` per committed directory under tests/golden/torch-<version>."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from . import fsdp1, fsdp2, plain


@dataclass(frozen=True)
class Case:
    """`save(checkpoint)` runs on every rank, writes the checkpoint, and returns the truth."""

    name: str
    world_size: int
    save: Callable[[Path], dict[str, Tensor]]
    about: str


CASES: Mapping[str, Case] = {
    case.name: case
    for case in (
        Case("fsdp1-dcp-w2", 2, fsdp1.save_orig, "FSDP1, use_orig_params, accelerate's layout"),
        Case("fsdp1-dcp-w3-flat", 3, fsdp1.save_flat, "FSDP1 without use_orig_params"),
        Case("fsdp1-sharded-bin-w2", 2, fsdp1.save_bin, "FSDP1 ShardedTensors, one file per rank"),
        Case("fsdp2-dcp-w3", 3, fsdp2.save_accelerate, "FSDP2 in accelerate's layout"),
        Case("fsdp2-torchtitan-w2", 2, fsdp2.save_torchtitan, "step-2 and step-4, bare names"),
        Case("fsdp2-tp-dcp-w4", 4, fsdp2.save_two_dimensional, "2 x 2: data and tensor parallel"),
        Case("fsdp2-hf-sharded-w2", 2, fsdp2.save_hf, "bf16 safetensors with DCP_SHARDING_INFO"),
        Case("fsdp2-verl-w3", 3, fsdp2.save_verl, "DTensors pickled per rank, verl's file names"),
        Case("state-dicts", 1, plain.save_state_dicts, "one state dict in four kinds of file"),
        Case("training-file", 1, plain.save_training, "model and torch optimizer in one file"),
    )
}
