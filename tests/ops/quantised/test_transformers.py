"""transformers itself loads what is made of its models, to equal weights and logits."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from zerotools.ops.conversions.consolidate import Options, prepare_export
from zerotools.ops.conversions.conversion import perform_conversion
from zerotools.ops.execution.tile_workers import MemoryBudget

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch
SHAPE: dict[str, Any] = {
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "vocab_size": 64,
}


def _export(source: Path, out: Path, dtype: str) -> Path:
    conversion = prepare_export(source, out, Options(dtype=dtype))
    perform_conversion(conversion, budget=MemoryBudget(workers=1), overwrite=False)
    return out


def _logits(path: Path, dtype: Any = torch.float32) -> Any:
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(path, dtype=dtype).eval()
    with torch.no_grad():
        found = model(torch.arange(12).reshape(1, 12)).logits
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}, found


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("llama") / "model"
    LlamaForCausalLM(LlamaConfig(**SHAPE)).to(torch.bfloat16).save_pretrained(path)
    return path


@pytest.mark.parametrize("dtype", ["fp8-block", "mxfp8"])
def test_its_own_dequantisation_finds_the_values_that_we_find(
    llama: Path, tmp_path: Path, dtype: str
) -> None:
    quantised = _export(llama, tmp_path / "few", dtype)
    names, logits = _logits(quantised, torch.bfloat16)
    found, expected = _logits(_export(quantised, tmp_path / "plain", "bf16"), torch.bfloat16)
    assert names.keys() == found.keys()
    assert all(torch.equal(names[name], found[name]) for name in names)
    torch.testing.assert_close(logits, expected)
    plain, _ = _logits(llama, torch.bfloat16)
    changed = [name for name in plain if not torch.equal(plain[name], found[name])]
    assert all("proj" in name for name in changed)
    assert len(changed) == (5 if dtype == "fp8-block" else 7)


def test_experts_of_gpt_oss(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file
    from transformers import GptOssConfig, GptOssForCausalLM
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors

    shape = {**SHAPE, "hidden_size": 64, "intermediate_size": 32, "head_dim": 32}
    config = GptOssConfig(**shape, num_local_experts=2, num_experts_per_tok=1)
    torch.manual_seed(0)
    GptOssForCausalLM(config).save_pretrained(tmp_path / "plain")
    tensors = load_file(tmp_path / "plain/model.safetensors")
    expected = {}
    for name in [name for name in tensors if name.endswith("_proj") and "experts" in name]:
        experts, columns, rows = tensors.pop(name).shape
        blocks = torch.randint(0, 256, (experts, rows, columns // 32, 16), dtype=torch.uint8)
        scales = torch.randint(115, 122, blocks.shape[:-1], dtype=torch.uint8)
        tensors |= {f"{name}_blocks": blocks, f"{name}_scales": scales}
        expected[name] = convert_moe_packed_tensors(blocks, scales, dtype=torch.float32)
    (tmp_path / "few").mkdir()
    save_file(tensors, tmp_path / "few/model.safetensors", metadata={"format": "pt"})
    said = json.loads((tmp_path / "plain/config.json").read_text())
    said["quantization_config"] = {"quant_method": "mxfp4"}
    (tmp_path / "few/config.json").write_text(json.dumps(said))
    found, logits = _logits(_export(tmp_path / "few", tmp_path / "out", "fp32"))
    assert len(expected) == 2
    assert all(torch.equal(found[name], tensor) for name, tensor in expected.items())
    model = GptOssForCausalLM(config).eval()
    model.load_state_dict({**found, **expected})
    with torch.no_grad():
        torch.testing.assert_close(logits, model(torch.arange(12).reshape(1, 12)).logits)
