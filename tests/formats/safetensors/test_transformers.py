"""transformers loads what we lay out, and we read what it saves."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.formats.copying import write
from zerotools import formats
from zerotools.core.dtypes import BFLOAT16
from zerotools.formats.safetensors.lay_out import lay_out as lay_out_safetensors

pytestmark = pytest.mark.torch


@pytest.mark.parametrize("most", [10**9, 8_000])
def test_from_pretrained_loads_the_same_weights(tmp_path: Path, most: int) -> None:
    import torch
    from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=64, hidden_size=16, intermediate_size=24, num_hidden_layers=2,
        num_attention_heads=2, num_key_value_heads=2,
    )  # fmt: skip
    model = LlamaForCausalLM(config).to(torch.bfloat16)
    model.save_pretrained(tmp_path / "saved", max_shard_size="6KB")
    source = formats.read(tmp_path / "saved")
    assert {tensor.dtype for tensor in source.tensors.values()} == {BFLOAT16}
    target = lay_out_safetensors(source, tmp_path / "out", max_shard_bytes=most)
    out = write(source, target)
    assert (len(list(out.glob("*.safetensors"))) == 1) == (most > 8_000)
    assert json.loads((out / "config.json").read_text())["dtype"] == "bfloat16"
    assert (out / "generation_config.json").exists()
    loaded = AutoModelForCausalLM.from_pretrained(out)
    assert loaded.dtype == torch.bfloat16
    wanted = model.state_dict()
    assert loaded.state_dict().keys() == wanted.keys()
    assert all(torch.equal(value, wanted[name]) for name, value in loaded.state_dict().items())
