"""PEFT judges adapters out of runs of DeepSpeed.

    python -m tests.golden.deepspeed_runs.adapters_judging

Each run of `RUNS` is a loop of a user's own on two ranks (`adapters`). Its adapters are exported by
`consolidate --adapter-only`; `PeftModel.from_pretrained` must then say what the engine said, bit
for bit, and `diff MERGED BASE --adapter` that PEFT's own merge is the sum. Prints Markdown.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForCausalLM

import zerotools
from harness.launching import TINY_LLAMA
from zerotools.ops.conversions.consolidate import Options, prepare_export
from zerotools.ops.conversions.conversion import perform_conversion
from zerotools.ops.execution.tile_workers import MemoryBudget

from .launch import launch

TOKENS = torch.arange(24).reshape(2, 12)
PLAIN: dict[str, Any] = {"r": 4, "lora_alpha": 6, "target_modules": ["q_proj", "down_proj"]}
RICH = {
    **PLAIN,
    "use_rslora": True,
    "rank_pattern": {"layers.1.self_attn.q_proj": 2},
    "alpha_pattern": {"down_proj": 3},
    "modules_to_save": ["lm_head"],
}
RUNS: dict[str, dict[str, Any]] = {
    **{f"stage {stage}": {"stage": stage, "lora": PLAIN} for stage in range(4)},
    "rsLoRA, patterns, modules_to_save": {"stage": 2, "lora": RICH},
    "DoRA": {"stage": 3, "lora": {**PLAIN, "use_dora": True, "modules_to_save": ["lm_head"]}},
    "embeddings": {"stage": 3, "lora": {**PLAIN, "target_modules": ["q_proj", "embed_tokens"]}},
    "two adapters": {"stage": 1, "lora": PLAIN, "second": {**PLAIN, "r": 2, "lora_alpha": 20}},
    "stage 2, without what is frozen": {"stage": 2, "lora": PLAIN, "exclude_frozen": True},
    "stage 3, without what is frozen": {"stage": 3, "lora": PLAIN, "exclude_frozen": True},
}


def judge(home: Path, base: Path, adapter: str) -> tuple[bool, str]:
    """Whether PEFT's logits are those of the run, and what `diff` says of its merge."""
    out = home / f"out-{adapter}"
    config = home / f"config-{adapter}"
    options = Options(adapter_only=True, adapter_config=config, adapter_name=adapter)
    conversion = prepare_export(home / "checkpoint", out, options)
    perform_conversion(conversion, budget=MemoryBudget(), overwrite=False, verify=True)
    model = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base), out).eval()
    with torch.no_grad():
        said = model(TOKENS).logits
    is_equal = adapter != "default" or torch.equal(
        said, load_file(home / "logits.safetensors")["logits"]
    )
    model.merge_and_unload().save_pretrained(home / f"merged-{adapter}")
    found = zerotools.diff(home / f"merged-{adapter}", base, adapter=out)
    return is_equal, "equal" if found.is_equal else "different"


def main() -> None:
    torch.set_num_threads(1)
    print("# Adapters of PEFT trained by DeepSpeed\n")
    print(
        "`python -m tests.golden.deepspeed_runs.adapters_judging`: "
        "2 ranks, `get_peft_model`, 2 steps.\n"
    )
    print(
        "| run | adapter | logits of PeftModel are the engine's | base + adapter is PEFT's merge |"
    )
    print("|---|---|---|---|")
    with tempfile.TemporaryDirectory() as directory:
        place = Path(directory)
        torch.manual_seed(0)
        config = AutoConfig.for_model(**TINY_LLAMA)
        AutoModelForCausalLM.from_config(config).save_pretrained(place / "base")
        for name in RUNS:
            (place / name).mkdir()
        (place / "runs.json").write_text(json.dumps(RUNS))
        launch("tests.golden.deepspeed_runs.adapters", [], 2, place)
        for name, run in RUNS.items():
            for adapter in ("default", *(["second"] if "second" in run else [])):
                is_equal, compared = judge(place / name, place / "base", adapter)
                shown = "was not asked" if adapter != "default" else "yes" if is_equal else "NO"
                print(f"| {name} | {adapter} | {shown} | {compared} |", flush=True)


if __name__ == "__main__":
    main()
