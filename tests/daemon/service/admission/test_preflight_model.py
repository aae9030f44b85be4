"""What is wrong with a job's model directory or tokenizer is said before the job is accepted."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest

from tests.daemon.service.admission.test_preflight_data import GOOD, Make, check, make, refusal

__all__ = ["make"]
LLAMA = '{"model_type": "llama"}'
LFS = "version https://git-lfs.github.com/spec/v1\noid sha256:ab\nsize 12\n"


def weights(name: str = "norm.weight", dtype: str = "F32", size: int = 4) -> bytes:
    entry = {name: {"dtype": dtype, "shape": [1], "data_offsets": [0, size]}}
    header = json.dumps(entry).encode()
    return struct.pack("<Q", len(header)) + header + bytes(size)


@pytest.fixture
def data(make: Make) -> dict[str, Any]:
    return {"text": [make("a.txt", "some text")]}


def test_a_model_directory_without_weights_says_how_to_start_without(
    make: Make, tmp_path: Path, data: dict[str, Any]
) -> None:
    model = {"path": str(tmp_path / "m")}
    assert "models are not downloaded: download it first" in refusal(data, model=model)
    make("m/config.json", LLAMA)
    sentence = f'contains no weights: to start from random ones, set model.config = "{tmp_path}'
    assert sentence in refusal(data, model=model)
    make("m/pytorch_model.bin", b"")
    assert refusal(data, model=model).endswith(
        f"zerotools convert {tmp_path}/m {tmp_path}/m-safetensors --to safetensors"
    )
    make("m/model.safetensors", weights())
    check(data, model=model)
    make("m/config.json", "{broken")
    assert "m/config.json: is not a JSON object with a model_type" in refusal(data, model=model)
    (tmp_path / "m/config.json").unlink()
    assert "contains no config.json" in refusal(data, model=model)
    (tmp_path / "m/model.safetensors").unlink()
    make("m/adapter_config.json", "{}")
    assert "holds the adapters of a model (adapter_config.json), not the model: merge" in refusal(
        data, model=model
    )


def test_integers_are_weights_where_the_config_says_quantised(
    make: Make, tmp_path: Path, data: dict[str, Any]
) -> None:
    make("m/model.safetensors", weights("experts.down_proj_blocks", "U8", 1))
    make("m/config.json", LLAMA)
    model = {"path": str(tmp_path / "m")}
    check(data, model=model)
    make("m/config.json", LLAMA[:-1] + ', "quantization_config": {"quant_method": "mxfp4"}}')
    assert refusal(data, model=model).endswith(
        "experts.down_proj_blocks is uint8: quantised weights cannot be trained; take the model in "
        "16 or 32 bits (method mxfp4 in its config.json)"
    )


@pytest.mark.parametrize(
    ("files", "sentence"),
    [
        ({"model.safetensors": LFS}, "is a Git LFS pointer, not the file itself"),
        ({"model.safetensors": weights()[:-2]}, "it is truncated or something was appended"),
        ({"model.safetensors": weights(dtype="I8", size=1)}, "norm.weight is int8: quantised"),
        ({"model.safetensors": weights(dtype="F8_E4M3", size=1)}, "is float8_e4m3fn: quantised"),
        ({"model.safetensors": weights("positions", "I32")}, None),
        ({"a.safetensors": weights()}, "b.safetensors is missing, but model.safetensors.index"),
        (
            {"a.safetensors": weights(), "b.safetensors": weights("other")},
            "b.safetensors lacks head.weight, which model.safetensors.index.json lists for it",
        ),
        ({"a.safetensors": weights(), "b.safetensors": weights("head.weight")}, None),
    ],
)
def test_the_headers_of_the_weights_are_read(
    make: Make,
    tmp_path: Path,
    data: dict[str, Any],
    files: dict[str, str | bytes],
    sentence: str | None,
) -> None:
    make("m/config.json", LLAMA)
    if "a.safetensors" in files:
        held = {"norm.weight": "a.safetensors", "head.weight": "b.safetensors"}
        make("m/model.safetensors.index.json", json.dumps({"weight_map": held}))
    for name, content in files.items():
        make(f"m/{name}", content)
    model = {"path": str(tmp_path / "m")}
    if sentence is None:
        check(data, model=model)
    else:
        assert sentence in refusal(data, model=model)


def test_the_tokenizer_of_the_model_is_looked_for(make: Make, tmp_path: Path) -> None:
    make("m/config.json", LLAMA)
    make("m/model.safetensors", weights())
    data, model = {"examples": [make("a.json", GOOD)]}, {"path": str(tmp_path / "m")}
    message = refusal(data, model=model)
    assert f"model.path = {tmp_path}/m: contains no tokenizer" in message
    assert "name one with data.tokenizer" in message


def test_a_chat_template_that_is_asked_for_is_looked_for(make: Make, tmp_path: Path) -> None:
    make("tok/tokenizer.json", "{}")
    data = {
        "examples": [make("a.json", GOOD)],
        "tokenizer": str(tmp_path / "tok"),
        "chat_template": "on",
    }
    assert f"the tokenizer in {tmp_path}/tok has no chat template" in refusal(data)
    make("tok/tokenizer_config.json", '{"chat_template": "{{ messages }}"}')
    check(data)
