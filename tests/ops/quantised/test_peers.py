"""What the formats' own libraries make of quantised weights, and of plain ones, bit for bit."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.golden_files import GOLDEN, digests
from zerotools.ops.conversions.consolidate import Options, prepare_export
from zerotools.ops.conversions.conversion import perform_conversion
from zerotools.ops.execution.tile_workers import MemoryBudget

TOOLS = (
    "bitsandbytes-0.50.2", "compressed-tensors-0.20.0", "torchao-0.18.0", "transformers-5.23.0",
)  # fmt: skip
TRUTHS = sorted(path for tool in TOOLS for path in (GOLDEN / tool).glob("*/truth.*.safetensors"))
PLAIN = sorted(path for tool in TOOLS for path in (GOLDEN / tool).glob("*/plain.safetensors"))
RECIPES = {"fp8": "fp8-block", "mxfp8": "mxfp8"}


def _named(path: Path) -> str:
    return "-".join(path.relative_to(GOLDEN).parts)


def _export(source: Path, out: Path, dtype: str) -> None:
    conversion = prepare_export(source, out, Options(dtype=dtype, check_names=False))
    perform_conversion(conversion, budget=MemoryBudget(workers=1), overwrite=False, verify=True)


@pytest.mark.parametrize("truth", TRUTHS, ids=_named)
def test_values_are_those_of_the_library(truth: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    _export(truth.parent / "model", out, truth.suffixes[-2].removeprefix("."))
    found, expected = digests(out / "model.safetensors"), digests(truth)
    assert {name: found[name] for name in expected} == expected
    kept = {"norm.weight"} & set(digests(truth.parent / "model" / "model.safetensors"))
    assert set(found) == set(expected) | kept
    assert "quantization_config" not in json.loads((out / "config.json").read_text())


@pytest.mark.parametrize("plain", PLAIN, ids=_named)
def test_payload_and_scales_are_those_of_the_library(plain: Path, tmp_path: Path) -> None:
    source = tmp_path / "model"
    source.mkdir()
    (source / "model.safetensors").write_bytes(plain.read_bytes())
    (source / "config.json").write_text("{}")
    settings = json.loads((plain.parent / "model" / "config.json").read_text())
    method = settings["quantization_config"]["quant_method"]
    _export(source, tmp_path / "out", RECIPES[method])
    assert digests(tmp_path / "out" / "model.safetensors") == digests(
        plain.parent / "quantised.safetensors"
    )
    written = json.loads((tmp_path / "out" / "config.json").read_text())["quantization_config"]
    assert written["quant_method"] == method
    assert written["weight_block_size"] == settings["quantization_config"]["weight_block_size"]
