"""Compare tensors that zerotools wrote for Megatron-Core with those that mbridge makes.

    python benchmarks/layout_maps/against_mbridge.py HF_MODEL MEGATRON_EXPORT

HF_MODEL is what `save_pretrained` wrote, MEGATRON_EXPORT what `zerotools consolidate HF_MODEL
MEGATRON_EXPORT --map-to megatron --dtype fp32` made of it. mbridge's own tables say which tensors
of the Hub each tensor is made of, and its `_weight_to_mcore_format` makes it. mbridge and
megatron-core are installed without what they depend on: only those functions run, on the CPU.

Prints how many tensors are equal, bit by bit; the exit status is 1 where one is not. Padding rows
of the vocabulary are not compared: mbridge fills them with zeros, zerotools with the last row.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

_LAYER = re.compile(r"decoder\.layers\.(\d+\.)?")
_EXPERTS = "mlp.experts.experts."


def main(hub: Path, export: Path) -> int:
    import torch
    from safetensors.torch import load_file
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(hub)
    bridge = bridge_of(config)
    weights, ours = load_file(hub / "model.safetensors"), load_file(export / "model.safetensors")
    equal, different = 0, []
    for stored, value in ours.items():
        for name, made in _each(stored, value, config.num_hidden_layers):
            names = bridge._weight_name_mapping_mcore_to_hf(name)
            wanted = bridge._weight_to_mcore_format(name, [weights[each] for each in names])
            if "vocab" in name or "word_embeddings" in name or name == "output_layer.weight":
                made = made[: config.vocab_size]
            if torch.equal(made, wanted):
                equal += 1
            else:
                different.append(name)
    print(f"{config.model_type}: {equal} tensors equal, {len(different)} different")
    for name in different[:10]:
        print(f"  {name}")
    return 1 if different or not equal else 0


def bridge_of(config: Any) -> Any:
    """mbridge's class for the model, without a model of Megatron."""
    from mbridge.core.auto_bridge import AutoBridge  # noqa: F401  # its import fills the table
    from mbridge.core.bridge import _MODEL_REGISTRY

    kind = _MODEL_REGISTRY[config.model_type]
    bridge = kind.__new__(kind)
    bridge.hf_config = config
    bridge.dtype = None
    bridge.make_vocab_size_divisible_by = None
    return bridge


def _each(stored: str, value: Any, layers: int) -> Any:
    """Tensors of each layer and expert, under the names that they have in a model."""
    found = _LAYER.match(stored)
    if found is None:
        yield stored, value
        return
    rest = stored[found.end() :]
    if found[1] is None:
        each = [(f"decoder.layers.{number}.{rest}", value[number]) for number in range(layers)]
    else:
        each = [(stored, value)]
    for name, tensor in each:
        if _EXPERTS not in name:
            yield name, tensor
            continue
        for number, expert in enumerate(tensor):
            yield name.replace("experts.experts.", "experts.") + str(number), expert


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2])))
