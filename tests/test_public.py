"""The Python interface: `import zerotools`."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import zerotools
from tests.formats.deepspeed.damaging import copied
from tests.formats.deepspeed.reading.test_check_same_save import poke
from tests.formats.torchfile.saving import Saved
from tests.golden_files import GOLDEN, JOB, digests
from tests.ops.exports import masters, model, noise
from tests.ops.quantised.models import FP8, fp8, plain, scales, write
from zerotools import public

ZERO2 = GOLDEN / "deepspeed-0.19.8/z2-bf16-w3"


def test_all_is_what_there_is() -> None:
    assert set(zerotools.__all__) == {*public.__all__, "__version__"}
    for name in public.__all__:
        assert getattr(zerotools, name) is getattr(public, name)
        assert name in dir(zerotools)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        zerotools.__getattr__("nothing")


def modules_after(script: str) -> set[str]:
    command = [
        sys.executable,
        "-c",
        f"{script}; import json, sys; print(json.dumps([*sys.modules]))",
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return set(json.loads(done.stdout))


def test_importing_and_opening_are_light() -> None:
    assert not modules_after("import zerotools") & {"zerotools.public", "zerotools.core.errors"}
    opening = f"import zerotools; r = zerotools.open({str(JOB)!r}); entry = [*r.values()][0]"
    opened = modules_after(opening)
    assert not opened & {"numpy", "ml_dtypes", "torch"}
    read = modules_after(
        f"import zerotools; r = zerotools.open({str(JOB)!r}); r[next(iter(r))].numpy()"
    )
    assert "torch" not in read


def test_a_job_s_tensors() -> None:
    reader = zerotools.open(JOB)
    truth = masters(JOB)
    assert set(reader) == {*truth, "lm_head.weight"}
    assert len(reader) == len(truth) + 1
    for name, values in truth.items():
        entry = reader[name]
        assert (entry.shape, str(entry.dtype)) == (values.shape, "float32")
        assert entry.numpy().tobytes() == values.tobytes()
    norm = truth["model.norm.weight"]
    assert (
        reader["model.norm.weight"].numpy("bf16").tobytes()
        == norm.astype(ml_dtypes.bfloat16).tobytes()
    )
    assert reader["lm_head.weight"].key.name == "model.embed_tokens.weight"
    assert reader["lm_head.weight", "exp_avg"].shape == truth["model.embed_tokens.weight"].shape
    roles = {"param", "step", "exp_avg", "exp_avg_sq"}
    assert set(reader.roles("model.norm.weight")) == roles
    assert "dcp" in repr(reader)


def test_deepspeed_against_the_live_run() -> None:
    reader = zerotools.open(ZERO2 / "checkpoint")
    truth = load_file(ZERO2 / "truth.safetensors")
    for key, values in truth.items():
        name, role = key.rsplit("|", 1)
        found = reader[name, role].numpy()
        assert found.shape == values.shape
        assert found.tobytes() == values.tobytes(), key
    roles = dict(key.rsplit("|", 1) for key in truth if key.endswith(("|param", "|buffer")))
    assert all(reader[name].key.role == role for name, role in roles.items())


def test_names_that_are_not_there() -> None:
    reader = zerotools.open(JOB)
    assert "nothing" not in reader
    for wanted in ("nothing", ("model.norm.weight", "nothing")):
        with pytest.raises(KeyError):
            reader[wanted]  # type: ignore[index]


def test_a_state_dict_of_arrays(tmp_path: Path) -> None:
    tensors = {"w": noise(5, 3), "count": np.arange(4), "half": noise(2).astype(np.float16)}
    path = model(tmp_path / "in", tensors)
    stored = zerotools.load_state_dict(path, framework="numpy")
    assert {n: (v.dtype, v.tobytes()) for n, v in stored.items()} == {
        n: (v.dtype, v.tobytes()) for n, v in tensors.items()
    }
    cast = zerotools.load_state_dict(path, framework="numpy", dtype="bfloat16")
    assert {str(v.dtype) for v in cast.values()} == {"bfloat16", "int64"}
    moments = zerotools.load_state_dict(JOB, framework="numpy", role="exp_avg")
    assert set(moments) == set(masters(JOB))
    with pytest.raises(zerotools.BadRequest, match="no tensors of role momentum"):
        zerotools.load_state_dict(JOB, framework="numpy", role="momentum")


def test_a_bias_of_scores_is_not_rounded(tmp_path: Path) -> None:
    near = np.array([2.3, 2.301], np.float32)
    path = model(tmp_path / "in", {"gate.e_score_correction_bias": near, "gate.weight": noise(2)})
    found = zerotools.load_state_dict(path, framework="numpy", dtype="bf16")
    np.testing.assert_array_equal(found["gate.e_score_correction_bias"], near)
    assert str(found["gate.weight"].dtype) == "bfloat16"


def test_what_cannot_be_cast_or_is_damaged(tmp_path: Path) -> None:
    path = model(tmp_path / "in", {"count": np.arange(4)})
    with pytest.raises(zerotools.Unsupported, match="a cast from int64 to float32"):
        zerotools.open(path)["count"].numpy(np.float32)
    with pytest.raises(zerotools.Unsupported, match="element type 'fp3'"):
        zerotools.open(path)["count"].numpy("fp3")
    damaged = tmp_path / "step-00000003"
    shutil.copytree(JOB, damaged)
    (damaged / "dcp/__1_0.distcp").unlink()
    reader = zerotools.open(damaged)
    with pytest.raises(zerotools.BadFile, match="is incomplete"):
        reader["model.embed_tokens.weight"].numpy()


@pytest.mark.torch
@pytest.mark.parametrize("kind", ["safetensors", "bin"])
def test_one_of_several_files_is_not_taken_for_a_model(tmp_path: Path, kind: str) -> None:
    if kind == "safetensors":
        path = tmp_path / "model-00001-of-00002.safetensors"
        save_file({"w": np.ones(3, np.float32)}, path)
    else:
        made = Saved()
        path = made.write(
            tmp_path / "pytorch_model-00001-of-00002.bin",
            {"w": made.tensor(np.ones(3, np.float32))},
        )
    with pytest.raises(zerotools.BadFile, match="is one of the 2 files of a model"):
        zerotools.load_state_dict(path, framework="numpy")
    assert zerotools.open(path)["w"].numpy().tolist() == [1, 1, 1]


def test_files_of_two_saves_give_no_values(tmp_path: Path) -> None:
    """As no command writes anything of them."""
    tag = copied("z3-bf16-w2", tmp_path)
    first, second = sorted(tag.glob("*optim_states.pt"))
    shutil.copyfile(first, second)
    reader = zerotools.open(tag)
    with pytest.raises(zerotools.BadFile, match="was saved as"):
        next(iter(reader.values())).numpy()
    tag = copied("z2-bf16-w2", tmp_path / "other")
    path = next(tag.glob("*rank_0_*optim_states.pt"))
    poke(path, "single_partition_of_fp32_groups", b"\0\0\xc8\x42" * 4)
    with pytest.raises(zerotools.Unsupported, match="is not equal to its master"):
        zerotools.load_state_dict(tag, framework="numpy")


def test_torch_tensors() -> None:
    torch = pytest.importorskip("torch")
    truth = masters(JOB)
    state = zerotools.load_state_dict(JOB, dtype=torch.bfloat16)
    assert set(state) == {*truth, "lm_head.weight"}
    assert state["lm_head.weight"] is state["model.embed_tokens.weight"]
    for name, values in truth.items():
        assert state[name].dtype is torch.bfloat16
        assert torch.equal(state[name], torch.from_numpy(values).to(torch.bfloat16))
    step = zerotools.open(JOB)["model.norm.weight", "step"].torch()
    assert (step.shape, step.item()) == ((), 3.0)
    buffers = zerotools.load_state_dict(ZERO2 / "checkpoint")
    assert {str(tensor.dtype) for tensor in buffers.values()} >= {"torch.float32", "torch.int64"}


@pytest.mark.parametrize(
    ("dtype", "value", "said"),
    [
        ("fp16", 1e5, "w in float16: 1 too large, the largest 100000"),
        ("float8_e4m3fn", 500.0, "the largest 500"),
    ],
)
def test_values_that_do_not_fit_are_refused_as_on_the_command_line(
    tmp_path: Path, dtype: str, value: float, said: str
) -> None:
    file = Saved()
    weights = np.array([1.0, value], np.float32)
    path = file.write(tmp_path / "a.pt", {"w": file.tensor(weights)})
    with pytest.raises(zerotools.BadRequest, match=said):
        zerotools.load_state_dict(path, dtype=dtype, framework="numpy")
    with pytest.raises(zerotools.BadRequest, match=said):
        zerotools.open(path)["w"].numpy(dtype)
    found = zerotools.load_state_dict(path, dtype="bf16", framework="numpy")["w"]
    assert found.astype(np.float32).tolist()[0] == 1.0


def test_diff_takes_one_word_or_several() -> None:
    found = zerotools.diff(str(JOB), JOB, role="param", include=["model.*"])
    assert found.is_equal
    assert {each.role for each in found.tensors} == {"param"}
    assert len(zerotools.diff(JOB, JOB, role=["exp_avg", "exp_avg_sq"]).tensors) > 2
    assert zerotools.diff(JOB, JOB).to_json()["schema"] == "zerotools.diff/1"


def test_thin_says_what_it_would_do_and_then_does_it(tmp_path: Path) -> None:
    path, nobody = copied("z2-bf16-w2", tmp_path), tmp_path / "nobody.sock"
    planned = zerotools.thin(path, drop_masters=True, socket=nobody)
    assert (planned.dry_run, planned.problems, planned.keep) == (True, (), "weights")
    assert set(planned.dropped) == {"exp_avg", "exp_avg_sq", "masters", "step"}
    [only] = planned.checkpoints
    assert only.bytes_before is not None
    assert only.bytes_after is not None
    assert planned.freed_bytes == only.bytes_before - only.bytes_after > 0
    whole = zerotools.load_state_dict(path, framework="numpy", role="param16")
    told: list[zerotools.ProgressUpdate] = []
    done = zerotools.thin(
        path, drop_masters=True, yes=True, socket=nobody, max_memory="64MiB", progress=told.append
    )
    assert [(each.status, each.soundness) for each in done.checkpoints] == [("thinned", "whole")]
    assert told[-1].done == told[-1].total > told[0].done > 0
    assert done.notes[-1].startswith("no daemon answers, so it is not known")
    left = zerotools.load_state_dict(path, framework="numpy")
    assert all(left[name].tobytes() == array.tobytes() for name, array in whole.items())
    again = zerotools.thin([path], yes=True, socket=nobody)
    assert [(each.status, each.freed) for each in again.checkpoints] == [("nothing", 0)]


def test_a_checkpoint_that_is_refused_raises_where_there_is_no_other(tmp_path: Path) -> None:
    path, nobody = copied("z2-bf16-w2", tmp_path), tmp_path / "nobody.sock"
    with pytest.raises(zerotools.BadRequest, match="nothing"):
        zerotools.thin(tmp_path / "nothing", socket=nobody)
    found = zerotools.thin([path, tmp_path / "nothing"], socket=nobody)
    assert [each.status for each in found.checkpoints] == ["planned", "refused"]
    assert len(found.problems) == 1


def test_quantised_weights_are_plain_in_a_type_and_as_they_are_without(tmp_path: Path) -> None:
    case = GOLDEN / "transformers-5.23.0" / "fp8-blocks"
    plain = zerotools.load_state_dict(case / "model", dtype="bf16", framework="numpy")
    expected = digests(case / "truth.bf16.safetensors")["a.weight"]
    assert set(plain) == {"a.weight", "norm.weight"}
    assert hashlib.sha256(plain["a.weight"].tobytes()).hexdigest() == expected[2]
    stored = zerotools.load_state_dict(case / "model", framework="numpy")
    assert stored["a.weight"].dtype.name == "float8_e4m3fn"
    assert stored["a.weight_scale_inv"].shape == (2, 1)


def _fp8(path: Path, *, has_config: bool = True) -> Path:
    """A model of blocks of 64, which shapes alone do not tell from blocks of 50."""
    config = {**FP8, "weight_block_size": [64, 64]}
    tensors = {"a.weight": fp8(100, 100), "a.weight_scale_inv": scales(2, 2)}
    write(path, {**tensors, "norm.weight": plain(16)}, config)
    if not has_config:
        (path / "config.json").unlink()
    return path


def test_a_config_is_found_wherever_a_checkpoint_is_named(tmp_path: Path) -> None:
    model = _fp8(tmp_path / "run")
    scale = np.kron(scales(2, 2), np.ones((64, 64), np.float32))[:100, :100]
    expected = fp8(100, 100).astype(np.float32) * scale
    step = model / "checkpoint-5"
    step.mkdir()
    shutil.copy(model / "model.safetensors", step)
    for path in (model, step, step / "model.safetensors", model / "model.safetensors"):
        found = zerotools.load_state_dict(path, dtype="fp32", framework="numpy")
        assert (found["a.weight"] == expected).all()
        entry = zerotools.open(path)["a.weight"]
        assert (entry.numpy("fp32") == expected).all()
        assert entry.numpy().dtype.name == "float8_e4m3fn"


def test_a_payload_is_not_cast_without_its_scales(tmp_path: Path) -> None:
    model = zerotools.open(_fp8(tmp_path / "m"))
    assert model["a.weight_scale_inv"].numpy("fp32").shape == (2, 2)
    with pytest.raises(zerotools.Unsupported, match="would become bfloat16 without its scales"):
        model["a.weight_scale_inv"].numpy("bf16")
    model = zerotools.open(_fp8(tmp_path / "other", has_config=False))
    with pytest.raises(zerotools.Unsupported, match="blocks of 50x50 and blocks of 99x99"):
        model["a.weight"].numpy("fp32")
    assert model["norm.weight"].numpy("fp32").dtype == np.float32
    alone = write(tmp_path / "alone", {"a.weight": fp8(4, 4)}, None)
    with pytest.raises(zerotools.BadFile, match="has no scales"):
        zerotools.open(alone)["a.weight"].numpy("bf16")


@pytest.mark.torch
@pytest.mark.parametrize(
    "case",
    [
        "transformers-5.23.0/mxfp8",
        "bitsandbytes-0.50.2/nf4",
        "compressed-tensors-0.20.0/int8-channel",
    ],
)
def test_an_entry_in_a_type_is_what_load_state_dict_has(case: str) -> None:
    model = GOLDEN / case / "model"
    expected = zerotools.load_state_dict(model, dtype="bf16")["a.weight"]
    assert zerotools.open(model)["a.weight"].torch("bf16").equal(expected)
