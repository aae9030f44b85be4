"""Read the files that only Megatron-Bridge, not Megatron-LM, writes next to a torch_dist
checkpoint.

    run_config.yaml     the configuration of the run: the sizes of the model below `model:`, the
                        rank of adapters below `peft:`
    train_state.pt      `step` and other counters, as tensors

The configuration is YAML. Only lines `  name: value` directly below `model:` or `peft:` are read,
and only values that are numbers, booleans or text.

Source: megatron-bridge 0.3 training/utils/checkpoint_utils.py and training/state.py.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from zerotools.core.errors import BadFile, Unsupported
from zerotools.formats.megatron.training_state import MegatronFacts
from zerotools.io.files.regular_files import read_regular
from zerotools.io.numeric.scalar_tensors import read_scalar
from zerotools.io.torchzip.pickle_values import StoredTensor
from zerotools.io.torchzip.pt_file import TorchFile

CONFIG, STATE = "run_config.yaml", "train_state.pt"
_LARGEST = 2**22
_LINE = re.compile(r"  ([A-Za-z_][A-Za-z0-9_]*):[ ]*(.*)")
_WORDS: Mapping[str, Any] = {"true": True, "false": False, "null": None, "~": None}


def bridge_facts(path: Path, facts: MegatronFacts) -> MegatronFacts:
    """Return `facts`, completed with values that are not in common.pt but in Megatron-Bridge's
    files.

    Raises:
        BadFile: a file is damaged.
    """
    if not facts.args and (path / CONFIG).is_file():
        facts = replace(facts, args=_arguments(section_of(path / CONFIG, "model")))
    if facts.iteration is None and (path / STATE).is_file():
        facts = replace(facts, iteration=step_in(path, STATE))
    return facts


def section_of(path: Path, word: str) -> dict[str, Any]:
    """Return the values that are directly below the key `word` in the file run_config.yaml at
    `path`, keyed by name.
    """
    text = read_regular(path, _LARGEST).decode("utf-8", "replace")
    found: dict[str, Any] = {}
    inside = False
    for line in text.splitlines():
        if line[:1] not in (" ", "#", ""):
            inside = line.rstrip() == f"{word}:"
        elif inside and (match := _LINE.fullmatch(line.rstrip())) and match[2]:
            found[match[1]] = _scalar(match[2])
    return found


def _scalar(text: str) -> Any:
    if text in _WORDS:
        return _WORDS[text]
    for kind in (int, float):
        try:
            return kind(text) if len(text) < 40 else text
        except ValueError:
            continue
    return text.strip("'\"")


def _arguments(model: dict[str, Any]) -> dict[str, Any]:
    """Return the run's arguments under the names of Megatron-LM's training script."""
    heads, groups = model.get("num_attention_heads"), model.get("num_query_groups")
    tied = model.get("share_embeddings_and_output_weights")
    more = {
        "untie_embeddings_and_output_weights": not tied if isinstance(tied, bool) else None,
        "swiglu": model.get("gated_linear_unit"),
        "num_experts": model.get("num_moe_experts"),
        "group_query_attention": groups is not None and groups != heads,
    }
    return {**model, **{name: value for name, value in more.items() if value is not None}}


def step_in(path: Path, name: str) -> int | None:
    """Return the training step in the counter file `name` below `path`, or None if there is no
    such file or step.

    Raises:
        BadFile: it is damaged.
    """
    try:
        file = TorchFile.open(path, name)
        step = file.tree.get("step") if isinstance(file.tree, dict) else None
        if isinstance(step, StoredTensor):
            step = int(read_scalar(path, file.tensor(step)).value)
    except Unsupported as error:
        raise BadFile(str(error)) from None
    return step if type(step) is int and 0 <= step < 2**62 else None
