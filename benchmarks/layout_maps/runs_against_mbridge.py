"""Compare what `--map-to hf` makes of real Megatron runs with what mbridge exports of them.

    PYTHONPATH=.:DIR python benchmarks/layout_maps/runs_against_mbridge.py CASE ...

CASE is such as tests/golden/megatron-core-0.16.1/hub-qwen3: the checkpoint, cut over ranks, and
`truth.safetensors`, the whole weights as the live ranks had them. mbridge's `_weight_to_hf_format`
makes tensors of the Hub of that truth; each must be, bit by bit, what zerotools wrote. DIR has
mbridge and megatron-core, installed without what they depend on. Of DeepSeek V3 mbridge knows MTP
in a model of 61 layers alone: those tensors are not compared, and counted.
"""

from __future__ import annotations

import json
import re
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from benchmarks.layout_maps.against_mbridge import bridge_of
from zerotools.ops.conversions import consolidate
from zerotools.ops.conversions.conversion import perform
from zerotools.ops.execution.workers import MemoryBudget
from zerotools.ops.weights.layout_mapping import MapRequest

_EXPERT = re.compile(r"(.*\.mlp\.experts)\.local_experts\.(\d+)\.(linear_fc[12]\.weight)")


def main(cases: list[Path]) -> int:
    failed = 0
    for case in cases:
        equal, different, skipped = compared(case)
        failed += bool(different) or not equal
        print(f"{case.name}: {equal} equal, {len(different)} different, {skipped} not known")
        for name in different[:5]:
            print(f"  {name}")
    return 1 if failed else 0


def compared(case: Path) -> tuple[int, list[str], int]:
    """How many tensors of the Hub are equal, which are not, and how many mbridge does not know."""
    import torch
    from safetensors.torch import load_file
    from transformers import AutoConfig

    tree = json.loads((case / "config.json").read_text())
    bridge = bridge_of(AutoConfig.from_pretrained(case))
    bridge.config = SimpleNamespace(
        num_layers=tree["num_hidden_layers"], mtp_num_layers=tree.get("num_nextn_predict_layers")
    )
    truth = load_file(case / "truth.safetensors")
    weights = {name[:-6]: value for name, value in truth.items() if name.endswith("|param")}
    ours = _exported(case, load_file)
    found: dict[str, Any] = {}
    for name, value in weights.items():
        if name.startswith(("embedding.", "output_layer.")):
            value = value[: tree["vocab_size"]]
        try:
            names, tensors = bridge._weight_to_hf_format(_as_te(name, weights), value)
        except (AssertionError, KeyError, NotImplementedError):  # not in its tables; it is counted
            continue
        found.update(zip(names, tensors, strict=True))
    different = [n for n, v in found.items() if n not in ours or not torch.equal(v, ours[n])]
    return len(found) - len(different), different, len(ours.keys() - found.keys())


def _exported(case: Path, load: Any) -> Any:
    with tempfile.TemporaryDirectory() as place:
        out = Path(place) / "model"
        wanted = consolidate.Options(dtype="fp32", mapping=MapRequest(to="hf"))
        made = consolidate.prepare(case / "checkpoint", out, wanted, config_dir=case)
        perform(made, budget=MemoryBudget(), overwrite=False, verify=True)
        return load(out / "model.safetensors")


def _as_te(name: str, weights: dict[str, Any]) -> str:
    """The name that a model of Transformer Engine's layers has, which mbridge's tables are of."""
    if match := _EXPERT.fullmatch(name):
        return f"{match[1]}.{match[3]}{match[2]}"
    prefix = name.removesuffix("layernorm.weight")
    if prefix.endswith(".input_") and f"{prefix[:-7]}.self_attention.linear_qkv.weight" in weights:
        return f"{prefix[:-7]}.self_attention.linear_qkv.layer_norm_weight"
    if prefix.endswith(".pre_mlp_") and f"{prefix[:-9]}.mlp.linear_fc1.weight" in weights:
        return f"{prefix[:-9]}.mlp.linear_fc1.layer_norm_weight"
    latent = prefix.removesuffix(".q_").removesuffix(".kv_")
    if latent != prefix and f"{latent}.linear_kv_up_proj.weight" in weights:
        which = prefix[len(latent) + 1 : -1]
        return f"{latent}.linear_{which}_up_proj.layer_norm_weight"
    return name


if __name__ == "__main__":
    sys.exit(main([Path(each) for each in sys.argv[1:]]))
