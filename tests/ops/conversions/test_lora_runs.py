"""LoRA runs of DeepSpeed at every stage: the merged model answers as the engine did."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from zerotools.core.errors import BadRequest
from zerotools.public import consolidate

pytestmark = [pytest.mark.full, pytest.mark.deepspeed, pytest.mark.peft]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The runs of `adapters_judging`, and their base model."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    from harness.launching import TINY_LLAMA
    from tests.golden.deepspeed_runs.adapters_judging import RUNS
    from tests.golden.deepspeed_runs.launch import launch

    place = tmp_path_factory.mktemp("runs")
    torch.manual_seed(0)
    config = AutoConfig.for_model(**TINY_LLAMA, architectures=["LlamaForCausalLM"])
    AutoModelForCausalLM.from_config(config).save_pretrained(place / "base")
    for name in RUNS:
        (place / name).mkdir()
    (place / "runs.json").write_text(json.dumps(RUNS))
    launch("tests.golden.deepspeed_runs.adapters", [], 2, place)
    return place


def test_the_merged_model_answers_as_the_engine_did(runs: Path) -> None:
    import torch
    from safetensors.torch import load_file
    from transformers import AutoModelForCausalLM

    from tests.golden.deepspeed_runs.adapters_judging import RUNS, TOKENS

    for name, run in RUNS.items():
        home, out = runs / name, runs / name / "merged"
        checkpoint = home / "checkpoint"
        shutil.copy(home / "config-default" / "adapter_config.json", checkpoint)
        if run.get("exclude_frozen"):
            with pytest.raises(BadRequest, match=r"--base base, or export only the adapter with"):
                consolidate(checkpoint, out)
            consolidate(checkpoint, out, dtype="fp32", base=runs / "base", verify=True)
        else:
            consolidate(checkpoint, out, dtype="fp32", config_dir=runs / "base", verify=True)
        model, info = AutoModelForCausalLM.from_pretrained(out, output_loading_info=True)
        assert (info["missing_keys"], info["unexpected_keys"]) == (set(), set()), name
        with torch.no_grad():
            said = model.eval()(TOKENS).logits
        wanted = load_file(home / "logits.safetensors")["logits"]
        torch.testing.assert_close(said, wanted, rtol=1e-5, atol=1e-6, msg=name)
