"""Exports of a real job's checkpoint; their bytes are compared with another route to them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

import zerotools
from tests.forked_programs import forked_programs
from tests.formats.safetensors.files import entry, file_bytes
from tests.golden_files import DEEPSPEED, JOB, TORCH
from tests.ops import exports
from zerotools.core.errors import BadFile, BadRequest
from zerotools.formats import read_any
from zerotools.io.numeric.dtype_casts import Array
from zerotools.ops.conversions.consolidate import Options, prepare_export
from zerotools.ops.conversions.conversion import perform_conversion
from zerotools.ops.execution.tile_workers import MemoryBudget
from zerotools.ops.inspection.inspect import inspect
from zerotools.ops.inspection.next_commands import next_commands


def export(destination: Path, **options: object) -> dict[str, Array]:
    return exports.export(JOB, destination, **options)


def masters() -> dict[str, Array]:
    return exports.masters(JOB)


def test_bf16_is_the_rounded_master(tmp_path: Path) -> None:
    exported = export(tmp_path / "out", dtype="bf16")
    truth = masters()
    assert set(exported) == set(truth)
    for name, values in truth.items():
        assert exported[name].tobytes() == values.astype(ml_dtypes.bfloat16).tobytes()


def test_fp32_is_the_master(tmp_path: Path) -> None:
    exported = export(tmp_path / "out", dtype="fp32")
    assert all(exported[name].tobytes() == values.tobytes() for name, values in masters().items())


def test_auto_is_the_precision_of_the_run(tmp_path: Path) -> None:
    exported = export(tmp_path / "out")
    assert {values.dtype for values in exported.values()} == {np.dtype(ml_dtypes.bfloat16)}
    config = json.loads((tmp_path / "out/config.json").read_text())
    assert "bfloat16" in (config.get("dtype"), config.get("torch_dtype"))


BIAS = "layers.1.mlp.gate.e_score_correction_bias"


@pytest.mark.parametrize("dtype", ["auto", "bf16", "fp16"])
def test_a_bias_of_scores_is_not_rounded(dtype: str, tmp_path: Path) -> None:
    near = np.array([2.3, 2.301, 2.302], np.float32)  # one value in 16 bits
    weights = {BIAS: near, "layers.1.mlp.gate.weight": exports.noise(3, 4)}
    source = exports.model(tmp_path / "in", weights)
    conversion = prepare_export(source, tmp_path / "out", Options(dtype=dtype))
    assert f"not rounded to 16 bits, as in transformers: {BIAS}" in conversion.notes
    perform_conversion(conversion, budget=MemoryBudget(), overwrite=False, verify=True)
    found = exports.weights_of(tmp_path / "out")
    np.testing.assert_array_equal(found[BIAS], near)
    assert found[BIAS].dtype == np.float32
    assert found["layers.1.mlp.gate.weight"].dtype.itemsize == 2
    zerotools.convert(source, tmp_path / "converted", to="safetensors", dtype="bf16")
    np.testing.assert_array_equal(exports.weights_of(tmp_path / "converted")[BIAS], near)
    zerotools.salvage(source, tmp_path / "salvaged", dtype="bf16")
    np.testing.assert_array_equal(exports.weights_of(tmp_path / "salvaged")[BIAS], near)


@pytest.mark.torch
@pytest.mark.parametrize(
    ("name", "dtype"),
    [("mamba2", "bfloat16"), ("qwen3_next", "bfloat16"), ("ernie4_5_moe", "float16")],
)
def test_what_transformers_rounds_is_rounded(name: str, dtype: str, tmp_path: Path) -> None:
    """`A_log` and `dt_bias` of state-space models too: only their classes name what stays fp32."""
    import torch
    from transformers import AutoModelForCausalLM

    from benchmarks.architectures.configs import tiny_config

    source, theirs, ours = tmp_path / "fp32", tmp_path / "theirs", tmp_path / "ours"
    AutoModelForCausalLM.from_config(tiny_config(name)).float().save_pretrained(source)
    loaded = AutoModelForCausalLM.from_pretrained(source, dtype=getattr(torch, dtype))
    loaded.save_pretrained(theirs)
    with forked_programs(tmp_path):
        zerotools.consolidate(source, ours, dtype={"bfloat16": "bf16", "float16": "fp16"}[dtype])
    found = {name: values.dtype for name, values in exports.weights_of(ours).items()}
    assert found == {name: values.dtype for name, values in exports.weights_of(theirs).items()}


@pytest.mark.parametrize("form", ["safetensors", "torch"])
@pytest.mark.parametrize("most", [10**6, 32])
def test_a_model_of_diffusers_has_the_names_that_it_reads(
    form: str, most: int, tmp_path: Path
) -> None:
    config = json.dumps({"_class_name": "UNet2DModel", "sample_size": 8})
    weights = {"a.weight": exports.noise(4, 4), "b.weight": exports.noise(4)}
    source = exports.model(tmp_path / "in", weights, config__json=config)
    options = Options(dtype="bf16", format=form, max_shard_bytes=most)
    conversion = prepare_export(source, tmp_path / "out", options)
    perform_conversion(conversion, budget=MemoryBudget(), overwrite=False)
    suffix = ".safetensors" if form == "safetensors" else ".bin"
    stem = f"diffusion_pytorch_model{suffix}"
    shards = [f"diffusion_pytorch_model-0000{n}-of-00002{suffix}" for n in (1, 2)]
    wanted = {stem} if most > 32 else {*shards, f"{stem}.index.json"}
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        ".zerotools-output.json", "config.json", *wanted
    }  # fmt: skip
    assert json.loads((tmp_path / "out" / "config.json").read_text()) == json.loads(config)
    assert len(read_any(tmp_path / "out").tensors) == 2


def test_a_bias_that_has_16_bits_keeps_them(tmp_path: Path) -> None:
    near = np.array([2.3, 2.301], ml_dtypes.bfloat16)
    source = exports.model(tmp_path / "in", {BIAS: near})
    assert exports.export(source, tmp_path / "out")[BIAS].dtype == ml_dtypes.bfloat16


def test_small_shards_have_an_index(tmp_path: Path) -> None:
    exported = export(tmp_path / "out", max_shard_bytes=6000)
    index = json.loads((tmp_path / "out/model.safetensors.index.json").read_text())
    assert set(index["weight_map"]) == set(exported) == set(masters())
    assert len(set(index["weight_map"].values())) > 1


def test_a_tied_name_is_left_out_or_written_as_asked(tmp_path: Path) -> None:
    assert "lm_head.weight" not in export(tmp_path / "tied")
    kept = export(tmp_path / "kept", keep_aliases=True)
    assert kept["lm_head.weight"].tobytes() == kept["model.embed_tokens.weight"].tobytes()


def test_names_are_chosen_by_globs(tmp_path: Path) -> None:
    exported = export(tmp_path / "out", include=("*.mlp.*",), exclude=("*down_proj*",))
    assert sorted(exported) == [
        "model.layers.0.mlp.gate_proj.weight",
        "model.layers.0.mlp.up_proj.weight",
    ]
    with pytest.raises(BadRequest, match="no weights that match"):
        export(tmp_path / "none", include=("nothing",))


def test_new_names_come_before_globs(tmp_path: Path) -> None:
    options = {"strip_prefix": ("model.",), "rename": (r"layers\.(\d+)=h.\1",)}
    globs = ("h.0.mlp.*", "norm.*")
    exported = export(tmp_path / "out", include=globs, check_names=False, **options)
    assert "norm.weight" in exported
    assert "h.0.mlp.up_proj.weight" in exported
    assert all(name.startswith(("h.0.mlp.", "norm.")) for name in exported)


def test_two_tensors_cannot_get_one_name(tmp_path: Path) -> None:
    with pytest.raises(BadRequest, match=r"layernorm\.weight and \S+ would both become x\.w$"):
        export(tmp_path / "out", rename=(r"^.*norm\..*=x.w",))
    assert list(tmp_path.iterdir()) == []


def test_a_prefix_that_no_name_has_is_said(tmp_path: Path) -> None:
    conversion = prepare_export(JOB, tmp_path / "out", Options(strip_prefix=("model.", "module.")))
    assert any("no name begins with 'module.'" in note for note in conversion.notes)
    assert not any("'model.'" in note for note in conversion.notes)


def test_modes_follow_the_umask(tmp_path: Path) -> None:
    export(tmp_path / "out")
    plain = tmp_path / "plain"
    plain.touch()
    assert (tmp_path / "out/model.safetensors").stat().st_mode == plain.stat().st_mode


def test_an_output_inside_the_checkpoint_is_refused(tmp_path: Path) -> None:
    for destination in (JOB / "out", JOB, JOB.parent):
        conversion = prepare_export(JOB, destination, Options())
        with pytest.raises(BadRequest, match="write it elsewhere"):
            perform_conversion(conversion, budget=MemoryBudget(), overwrite=True)


def test_overwrite_replaces_only_what_we_could_have_written(tmp_path: Path) -> None:
    precious = tmp_path / "thesis"
    precious.mkdir()
    (precious / "chapter.txt").write_text("years of work")
    with pytest.raises(
        BadRequest, match=r"has no \.zerotools-output\.json, .* not replace this directory"
    ):
        perform_conversion(
            prepare_export(JOB, precious, Options()), budget=MemoryBudget(), overwrite=True
        )
    assert (precious / "chapter.txt").read_text() == "years of work"
    export(tmp_path / "out")
    perform_conversion(
        prepare_export(JOB, tmp_path / "out", Options()), budget=MemoryBudget(), overwrite=True
    )


def test_an_unreadable_tensor_keeps_no_other_from_being_read(tmp_path: Path) -> None:
    source = tmp_path / "run"
    source.mkdir()
    header = {"m.embed": entry("F32", [1], 0, 4), "m.head": entry("", [], 4, 4)}
    (source / "model.safetensors").write_bytes(file_bytes(header, b"\0\0\x80\x3f"))
    with pytest.raises(BadFile, match=r"'m.head': element type .* --exclude m.head"):
        exports.export(source, tmp_path / "whole")
    renamed = {"strip_prefix": ["m."], "exclude": ["head"]}
    assert set(exports.export(source, tmp_path / "out", **renamed)) == {"embed"}
    with pytest.raises(BadFile, match=r"'m\.head'"):
        zerotools.load_state_dict(source, framework="numpy")
    assert zerotools.open(source)["m.embed"].numpy() == [1.0]
    (command,) = next_commands(inspect(read_any(source)), source)
    assert command.endswith("run-model --exclude m.head")


SAID = "do not record which save they are from"


def _notes(source: Path, out: Path) -> list[str]:
    return [note for note in zerotools.consolidate(source, out, dry_run=True).notes if SAID in note]


@pytest.mark.parametrize("case", ["fsdp2-verl-w3", "fsdp2-dcp-w3", "fsdp2-hf-sharded-w2"])
def test_files_of_ranks_without_a_word_of_their_save(tmp_path: Path, case: str) -> None:
    source = tmp_path / "run"
    shutil.copytree(TORCH / case / "checkpoint", source)
    (note,) = _notes(source, tmp_path / "out")
    assert "are from the same save: run zerotools verify --write-manifest" in note
    zerotools.verify(source, write_manifest=True)
    assert _notes(source, tmp_path / "out") == []


@pytest.mark.parametrize("source", [DEEPSPEED / "z2-fp32-w2" / "checkpoint", JOB])
def test_files_that_say_it_themselves_or_have_a_manifest(tmp_path: Path, source: Path) -> None:
    assert _notes(source, tmp_path / "out") == []
