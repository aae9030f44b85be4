"""Exports of real runs, loaded by the library they are for."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from tests.golden_files import GOLDEN
from tests.ops.exports import BF16, export
from zerotools.core.errors import BadRequest

DEEPSPEED = GOLDEN / "deepspeed-0.19.8"


@pytest.mark.torch
@pytest.mark.parametrize("most", [5 * 10**9, 2_000])
def test_torch_files_answer_as_the_live_model_did(most: int, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    case = "hf-trainer-z3-bf16-w2"
    source = DEEPSPEED / case / "checkpoint"
    export(source, tmp_path / "out", format="torch", max_shard_bytes=most)
    assert (tmp_path / "out/pytorch_model.bin").exists() == (most > 2_000)
    loaded = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    assert loaded.dtype == torch.bfloat16
    truth = load_file(DEEPSPEED / case / "logits.safetensors")
    with torch.no_grad():
        logits = loaded(torch.from_numpy(truth["input_ids"])).logits
    wanted = truth["logits"].astype(np.float32)
    # Matrix products may be summed in another order elsewhere.
    np.testing.assert_allclose(logits.float().numpy(), wanted, rtol=0, atol=2**-7)


@pytest.mark.parametrize("case", ["z2-bf16-w3", "z1-bf16-w4", "z2-fp16-w2"])
def test_the_16_bit_weights_are_those_of_the_live_model(case: str, tmp_path: Path) -> None:
    truth = load_file(DEEPSPEED / case / "truth.safetensors")
    exported = export(DEEPSPEED / case / "checkpoint", tmp_path / "out", weights_from="weights")
    copies = {key[: -len("|param16")]: v for key, v in truth.items() if key.endswith("|param16")}
    assert copies
    for name, values in copies.items():
        assert exported[name].tobytes() == values.tobytes(), name
    frozen = json.loads((DEEPSPEED / case / "truth.json").read_text())["frozen"]
    assert set(frozen) <= set(exported)


def test_masters_and_16_bit_weights_round_to_the_same(tmp_path: Path) -> None:
    path = DEEPSPEED / "z2-bf16-w3/checkpoint"
    masters = export(path, tmp_path / "masters")
    weights = export(path, tmp_path / "weights", weights_from="weights")
    assert {v.dtype for v in masters.values() if v.dtype.kind not in "iub"} >= {BF16}
    assert {n: v.tobytes() for n, v in masters.items()} == {
        n: v.tobytes() for n, v in weights.items()
    }


def test_stage_3_stores_no_16_bit_weights(tmp_path: Path) -> None:
    with pytest.raises(BadRequest, match="no 16-bit weights next to its masters"):
        export(DEEPSPEED / "z3-bf16-w2/checkpoint", tmp_path / "out", weights_from="weights")
