"""Quantised weights through whole conversions: in one run, in parts, served, and refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.golden_files import digests
from tests.ops.quantised.models import FP8, fp8, fp8_tensors, plain, scales, write
from zerotools import formats
from zerotools.core.errors import BadFile, BadRequest, Unsupported
from zerotools.ops.conversions import convert
from zerotools.ops.conversions.consolidate import (
    Options,
    choose_dtype,
    prepare_export,
)
from zerotools.ops.conversions.conversion import (
    Conversion,
    perform_conversion,
    perform_part,
    prove_part,
    refuse_overflow,
)
from zerotools.ops.execution.output_part import OutputPart
from zerotools.ops.execution.tile_workers import MIN_TILE_BYTES, MemoryBudget
from zerotools.ops.quantised.dequantise import refuse_quantised
from zerotools.ops.quantised.find_quantised import find_quantised
from zerotools.ops.serving.byte_source import ByteSource

SMALLEST = MemoryBudget(max_memory=3 * 2 * MIN_TILE_BYTES, workers=2)
SMALL = MemoryBudget(max_memory=16 * 3 * MIN_TILE_BYTES, workers=2)
LARGE = MemoryBudget(max_memory=64 * 2**20, workers=2)
PLAIN = {
    "embed.weight": plain(64, 128),
    "a.weight": plain(384, 256),
    "b.weight": plain(256, 128, seed=5),
    "norm.weight": plain(16),
}


@pytest.fixture
def quantised(tmp_path: Path) -> Path:
    tensors = fp8_tensors(300, 520) | {"b.weight": fp8(64, 40), "b.weight_scale_inv": scales(1, 1)}
    return write(tmp_path / "quantised", tensors, FP8)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write(tmp_path / "plain", PLAIN, None)


def _written(conversion: Conversion, budget: MemoryBudget = SMALL, **options: bool) -> Path:
    perform_conversion(conversion, budget=budget, overwrite=False, **options)
    return conversion.destination


def _files(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(directory.glob("[!.]*"))}


def _to_safetensors(source: Path, out: Path, dtype: str) -> Conversion:
    found = convert.prepare_convert(source, out, "safetensors", {"dtype": dtype})
    assert isinstance(found, Conversion)
    return found


def test_memory_and_command_make_no_difference(quantised: Path, tmp_path: Path) -> None:
    large = _written(
        prepare_export(quantised, tmp_path / "1", Options(dtype="bf16")), MemoryBudget()
    )
    small = prepare_export(quantised, tmp_path / "2", Options(dtype="bf16"))
    assert _files(_written(small, SMALLEST, verify=True)) == _files(large)
    other = _to_safetensors(quantised, tmp_path / "3", "bf16")
    assert _files(_written(other, verify=True)) == _files(large)
    assert any("dequantised: fp8 blocks" in note for note in other.notes)


@pytest.mark.parametrize("dtype", ["bf16", "fp8-block", "mxfp8"])
def test_parts_and_ranges_are_those_of_one_run(
    quantised: Path, model: Path, tmp_path: Path, dtype: str
) -> None:
    source = quantised if dtype == "bf16" else model
    options = Options(dtype=dtype, max_shard_bytes=60_000)
    whole = _files(_written(prepare_export(source, tmp_path / "whole", options), verify=True))
    for index in (2, 1, 3):
        conversion = prepare_export(source, tmp_path / "parts", options)
        planned = prove_part(conversion, OutputPart(index, 3), alignment=64)[1]
        perform_part(conversion, planned, budget=SMALL, overwrite=False)
    assert _files(tmp_path / "parts") == whole
    with ByteSource(prepare_export(source, tmp_path / "served", options), LARGE) as served:
        for name, data in whole.items():
            for begin, end in ((0, len(data)), (len(data) // 3, len(data) // 3 + 1001)):
                end = min(end, len(data))
                assert b"".join(served.read(name, begin, end)) == data[begin:end]


def test_a_type_that_is_not_asked_for_changes_nothing(quantised: Path, tmp_path: Path) -> None:
    conversion = prepare_export(quantised, tmp_path / "out", Options())
    found = digests(_written(conversion) / "model.safetensors")
    assert found == digests(quantised / "model.safetensors")
    config = json.loads((tmp_path / "out/config.json").read_text())
    assert config["quantization_config"] == FP8
    assert any("the weights stay quantised" in note for note in conversion.notes)


def test_scales_do_not_part_from_their_weight(quantised: Path, tmp_path: Path) -> None:
    with pytest.raises(BadRequest, match=r"a.weight would be written without a.weight_scale_inv"):
        prepare_export(quantised, tmp_path / "out", Options(include=["*.weight"]))
    renamed = Options(include=["x.weight"], rename=["^a=x"])
    with pytest.raises(BadRequest, match=r"a.weight would be written without"):
        prepare_export(quantised, tmp_path / "out", renamed)
    conversion = prepare_export(
        quantised, tmp_path / "out", Options(include=["a.weight"], dtype="fp32")
    )
    assert set(digests(_written(conversion) / "model.safetensors")) == {"a.weight"}


def test_names_change_with_their_scales(quantised: Path, tmp_path: Path) -> None:
    options = Options(dtype="bf16", rename=["^a=x"])
    found = digests(
        _written(prepare_export(quantised, tmp_path / "out", options)) / "model.safetensors"
    )
    assert set(found) == {"x.weight", "b.weight", "norm.weight"}


@pytest.mark.parametrize("dtype", ["bf16", "fp16", "fp32"])
def test_scales_that_are_missing_are_no_scales_of_1(tmp_path: Path, dtype: str) -> None:
    tensors = fp8_tensors()
    del tensors["a.weight_scale_inv"]
    source = write(tmp_path / "m", tensors, FP8)
    with pytest.raises(BadFile, match=r"has no scales"):
        prepare_export(source, tmp_path / "out", Options(dtype=dtype))
    with pytest.raises(BadFile, match=r"has no scales"):
        _to_safetensors(source, tmp_path / "out", dtype)


BAD_SCALES = {"inf": np.inf, "nan": np.nan, "0": 0.0}


@pytest.mark.parametrize("value", BAD_SCALES.values(), ids=BAD_SCALES)
def test_scales_that_mean_nothing_leave_no_output(tmp_path: Path, value: float) -> None:
    tensors = fp8_tensors()
    tensors["a.weight_scale_inv"][1, 1] = value
    source = write(tmp_path / "m", tensors, FP8)
    conversion = prepare_export(source, tmp_path / "out", Options(dtype="bf16"))
    with pytest.raises(BadFile, match=r"model.safetensors: a.weight has a scale .* in \[0:130, "):
        _written(conversion)
    assert not (tmp_path / "out").exists()


def test_a_config_that_says_so_of_plain_weights(tmp_path: Path) -> None:
    source = write(tmp_path / "m", PLAIN, FP8)
    for dtype in ("auto", "bf16"):
        with pytest.raises(BadFile, match=r"remove quantization_config from it"):
            prepare_export(source, tmp_path / "out", Options(dtype=dtype))


def test_an_unknown_method_is_moved_and_not_cast(tmp_path: Path) -> None:
    source = write(tmp_path / "m", fp8_tensors(), {"quant_method": "quark"})
    with pytest.raises(Unsupported, match=r"'quark'"):
        prepare_export(source, tmp_path / "out", Options(dtype="bf16"))
    conversion = prepare_export(source, tmp_path / "out", Options())
    found = digests(_written(conversion) / "model.safetensors")
    assert found == digests(source / "model.safetensors")


def test_what_is_too_large_for_fp16_is_refused(tmp_path: Path) -> None:
    tensors = {"a.weight": fp8(128, 128), "a.weight_scale_inv": np.full((1, 1), 1e6, np.float32)}
    source = write(tmp_path / "m", tensors, FP8)
    conversion = prepare_export(source, tmp_path / "out", Options(dtype="fp16"))
    with pytest.raises(BadRequest, match=r"a.weight has .* such values?, the largest 4\.48e"):
        perform_conversion(conversion, budget=SMALL, overwrite=False, check=refuse_overflow)


def test_values_that_are_not_finite_are_not_quantised(tmp_path: Path) -> None:
    bad = plain(256, 128)
    bad[200, 100] = np.nan
    source = write(tmp_path / "m", {"a.weight": bad}, None)
    with pytest.raises(BadFile, match=r"a.weight has NaN or infinite values"):
        _written(prepare_export(source, tmp_path / "out", Options(dtype="fp8-block")))


def test_a_block_that_does_not_fit_in_the_memory_is_refused(model: Path, tmp_path: Path) -> None:
    with pytest.raises(BadRequest, match=r"--max-memory is too small for a.weight"):
        _written(prepare_export(model, tmp_path / "out", Options(dtype="fp8-block")), SMALLEST)
    served = prepare_export(model, tmp_path / "out", Options(dtype="fp8-block"))
    with pytest.raises(BadRequest, match=r"too small for a.weight"), ByteSource(served, SMALLEST):
        pass


def test_there_and_back_is_within_a_step_of_fp8(model: Path, tmp_path: Path) -> None:
    _written(prepare_export(model, tmp_path / "8", Options(dtype="fp8-block")))
    _written(prepare_export(tmp_path / "8", tmp_path / "32", Options(dtype="fp32")))
    raw = (tmp_path / "32/model.safetensors").read_bytes()
    header = json.loads(raw[8 : 8 + int.from_bytes(raw[:8], "little")])
    begin, end = (
        8 + int.from_bytes(raw[:8], "little") + n for n in header["a.weight"]["data_offsets"]
    )
    found = np.frombuffer(raw[begin:end], np.float32).reshape(384, 256)
    expected = PLAIN["a.weight"].astype(np.float32)
    largest = np.abs(expected).max()
    np.testing.assert_allclose(found, expected, rtol=2**-4, atol=largest / 448 * 2**-9)
    again = prepare_export(tmp_path / "8", tmp_path / "9", Options())
    assert any("fp8 blocks 128x128, 2 tensors" in note for note in again.notes)


@pytest.mark.parametrize("to", ["deepspeed", "universal"])
def test_masters_are_not_made_without_scales(quantised: Path, tmp_path: Path, to: str) -> None:
    order: dict[str, Any] = {"lr": 1.0, "betas": (0.9, 0.99), "eps": 1e-8, "weight_decay": 0.0}
    if to == "deepspeed":
        order |= {"world_size": 2, "zero_stage": 2}
    with pytest.raises((Unsupported, BadRequest)):
        convert.prepare_convert(quantised, tmp_path / "out", to, order)
    assert not (tmp_path / "out").exists()


def test_an_adapter_is_not_quantised(model: Path, tmp_path: Path) -> None:
    with pytest.raises(BadRequest, match=r"--dtype fp8-block is for whole models"):
        prepare_export(model, tmp_path / "out", Options(dtype="fp8-block", adapter_only=True))


def test_the_checkpoint_is_named(tmp_path: Path) -> None:
    source = write(tmp_path / "m", {"a.weight": fp8(4, 4)}, FP8)
    with pytest.raises(BadFile) as caught:
        prepare_export(source, tmp_path / "out", Options(dtype="bf16"))
    assert str(caught.value).startswith(f"{source}: a.weight is float8_e4m3fn")


def test_commands_that_do_not_quantise_say_so(model: Path) -> None:
    with pytest.raises(BadRequest, match=r"--dtype mxfp8 is for consolidate, convert and serve"):
        choose_dtype(formats.read(model), "mxfp8")


def test_salvage_says_what_to_do_instead(quantised: Path) -> None:
    with pytest.raises(Unsupported, match=r"is quantised \(fp8 blocks .* --dtype bf16"):
        refuse_quantised(formats.read(quantised))


BLOCKS_OF_64 = {**FP8, "weight_block_size": [64, 64]}


def _config_of(directory: Path) -> Any:
    return json.loads((directory / "config.json").read_text())


@pytest.fixture
def of_64(tmp_path: Path) -> Path:
    """A model whose shapes fit blocks of 128 as well, and of 50."""
    tensors = {"a.weight": fp8(100, 100), "a.weight_scale_inv": scales(2, 2)}
    return write(tmp_path / "of 64", tensors, BLOCKS_OF_64)


@pytest.mark.parametrize("settings", [None, FP8])
def test_a_config_dir_says_what_is_written_and_not_how_weights_are_read(
    of_64: Path, tmp_path: Path, settings: dict[str, Any] | None
) -> None:
    base = write(tmp_path / "base", PLAIN, settings)
    own = _files(_written(prepare_export(of_64, tmp_path / "own", Options(dtype="fp32"))))
    for number, source in enumerate((of_64, of_64 / "model.safetensors")):
        out = prepare_export(
            source, tmp_path / f"1-{number}", Options(dtype="fp32"), config_dir=base
        )
        assert _files(_written(out)) == own
        options = {"dtype": "fp32"}
        other = convert.prepare_convert(
            source, tmp_path / f"2-{number}", "safetensors", options, config_dir=base
        )
        assert isinstance(other, Conversion)
        assert _files(_written(other)) == own
    kept = _written(prepare_export(of_64, tmp_path / "kept", Options(), config_dir=base))
    assert _config_of(kept)["quantization_config"] == BLOCKS_OF_64


def test_a_config_dir_that_is_quantised_is_not_written_so_beside_plain_weights(
    model: Path, quantised: Path, tmp_path: Path
) -> None:
    (model / "config.json").unlink()
    out = _written(prepare_export(model, tmp_path / "1", Options(), config_dir=quantised))
    assert "quantization_config" not in _config_of(out)
    other = convert.prepare_convert(
        model, tmp_path / "2", "dcp", {"world_size": 1}, config_dir=quantised
    )
    assert isinstance(other, Conversion)
    assert any("written without quantization_config" in note for note in other.notes)
    assert "quantization_config" not in _config_of(_written(other))


def test_scales_of_blocks_that_nothing_proves_stay_with_their_weight_or_are_refused(
    of_64: Path, tmp_path: Path
) -> None:
    (of_64 / "config.json").unlink()
    base = write(tmp_path / "base", PLAIN, FP8)
    with pytest.raises(Unsupported, match="blocks of 50x50 and blocks of 99x99, and"):
        prepare_export(of_64, tmp_path / "o", Options(dtype="bf16"), config_dir=base)
    with pytest.raises(Unsupported, match=r"is quantised .*which this command does not read"):
        refuse_quantised(formats.read(of_64))
    with pytest.raises(BadRequest, match=r"written without a.weight_scale_inv"):
        prepare_export(of_64, tmp_path / "o", Options(include=["a.weight"]))
    with pytest.raises(
        Unsupported,
        match=r"nothing shows which size is right; .*it has no config\.json, so no",
    ):
        prepare_export(of_64, tmp_path / "o", Options())
    other = write(tmp_path / "plain", PLAIN, None)
    said = r"its config\.json has no quantization_config, so no program"
    with pytest.raises(Unsupported, match=said):
        convert.prepare_convert(of_64, tmp_path / "o", "safetensors", {}, config_dir=other)
    kept = prepare_export(of_64, tmp_path / "o", Options(), config_dir=base)
    assert _config_of(_written(kept))["quantization_config"] == FP8


def test_scales_that_are_proved_need_a_config_that_says_so(tmp_path: Path) -> None:
    tensors = {"a.weight": fp8(4, 6), "a.weight_scale": scales(4)}
    source = write(tmp_path / "m", tensors, None)
    said = (
        r"is quantised \(fp8 with one .*\) and its config.json has no quantization_config.*--dtype"
    )
    with pytest.raises(Unsupported, match=said):
        prepare_export(source, tmp_path / "o", Options())
    _written(prepare_export(source, tmp_path / "plain", Options(dtype="bf16")))
    (source / "config.json").unlink()
    assert prepare_export(source, tmp_path / "o", Options()).lacking is not None


def test_a_config_that_is_no_json_is_named(of_64: Path, tmp_path: Path) -> None:
    (of_64 / "config.json").write_text('{"quantization_config": {"quant_method": "fp8",')
    said = r"blocks of 99x99, and .*config\.json, which should have this setting, is not JSON \("
    for dtype in ("bf16", "auto"):
        with pytest.raises(Unsupported, match=said):
            prepare_export(of_64, tmp_path / "o", Options(dtype=dtype))


def test_plain_weights_of_a_run_that_began_quantised_are_plain(
    quantised: Path, model: Path, tmp_path: Path
) -> None:
    step = quantised / "checkpoint-5"
    step.mkdir()
    (model / "model.safetensors").rename(step / "model.safetensors")
    assert not find_quantised(formats.read(step)).is_there
    conversion = prepare_export(step, tmp_path / "out", Options())
    assert any("written without quantization_config" in note for note in conversion.notes)
    assert "quantization_config" not in _config_of(_written(conversion))
