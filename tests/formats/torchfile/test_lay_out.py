"""One training file out of a sharded checkpoint: torch itself goes on from it."""

from __future__ import annotations

import json
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.formats.elements import assert_true, elements
from tests.golden_files import DEEPSPEED, GOLDEN, TORCH
from tests.ops.exports import model, noise
from zerotools import formats
from zerotools.core.checkpoint import Checkpoint, Key, Opaque
from zerotools.core.errors import BadRequest, Unsupported
from zerotools.core.target import Target
from zerotools.core.training_state import ParamGroup, Scalar, TrainingState
from zerotools.formats.torchfile.lay_out import lay_out_training_file
from zerotools.io.numeric.dtype_casts import Array
from zerotools.ops.conversions.consolidate import Options, prepare_export
from zerotools.ops.conversions.conversion import Conversion, perform_conversion, with_target_sources
from zerotools.ops.execution.tile_workers import MemoryBudget

FULL = DEEPSPEED / "z2-bf16-w2"


def laid_out(case: Path, out: Path, **changes: Any) -> tuple[Checkpoint, Target]:
    source = formats.read(case / "checkpoint")
    training = replace(formats.training_of(source), **changes)
    return source, lay_out_training_file(source, training, out)


def convert(case: Path, out: Path, **changes: Any) -> Target:
    source, target = laid_out(case, out, **changes)
    conversion = Conversion(with_target_sources(source, target), target)
    perform_conversion(conversion, budget=MemoryBudget(), overwrite=False, verify=True)
    return target


def dropped(target: Target) -> set[str]:
    return {each.what for each in target.dropped}


@pytest.mark.parametrize(
    "case",
    [
        "z2-bf16-w2",
        "z3-bf16-w2",
        "z3-bf16-w3-adapter",
        "z1-fp32-w2-amsgrad",
        "z2-fp32-w2-rmsprop",
        "z2-bf16-w2-round-robin",
        "z3-bf16-w2-bf16-masters",
        "bf16-optimizer-w4-tiny-group",
        "pipeline-z1-fp32-w4",
        "tensor-parallel-z2-fp32-w2",
    ],
)
def test_our_reader_finds_the_same_keys_and_bytes(tmp_path: Path, case: str) -> None:
    target = convert(DEEPSPEED / case, tmp_path / "out")
    source, back = formats.read(DEEPSPEED / case / "checkpoint"), formats.read(tmp_path / "out")
    kept = {key for key in source.tensors if key.role != "param16"}
    assert kept | target.carried.keys() == back.tensors.keys()
    assert back.aliases == source.aliases
    for key in kept:
        assert elements(back, key).tobytes() == elements(source, key).tobytes(), key


def test_the_truth_of_the_live_run_is_in_it(tmp_path: Path) -> None:
    convert(FULL, tmp_path / "out")
    roles = {"param", "buffer", "exp_avg", "exp_avg_sq", "step"}
    assert_true(formats.read(tmp_path / "out"), FULL / "truth.safetensors", roles=roles)


def test_what_is_dropped_is_said(tmp_path: Path) -> None:
    assert dropped(laid_out(FULL, tmp_path)[1]) == {"param16", "ds_config"}
    odd = Opaque("argparse", "Namespace")
    changed = {
        "client": {"args": odd, "epoch": 2},
        "lr_scheduler": {"last": odd},
        "ds_config": None,
    }
    assert dropped(laid_out(FULL, tmp_path, **changed)[1]) == {"param16", "client", "lr_scheduler"}


@pytest.mark.parametrize("case", ["z2-fp16-w2", "z3-bf16-w4", "z1-fp32-w2-adapter"])
def test_the_run_beside_the_tensors_is_what_it_was(tmp_path: Path, case: str) -> None:
    convert(DEEPSPEED / case, tmp_path / "out", client={"epoch": 2})
    source = formats.read(DEEPSPEED / case / "checkpoint")
    run = formats.training_of(source)
    wanted = replace(
        run,
        client={"epoch": 2},
        ds_config=None,
        optimizer_wrapper=None,  # torch's optimizer is its own
        loss_scaler=run.loss_scale,
    )
    assert formats.training_of(formats.read(tmp_path / "out")) == wanted


def test_a_step_that_one_parameter_keeps_for_its_group_is_that_of_all(tmp_path: Path) -> None:
    source = formats.read(FULL / "checkpoint")
    training = formats.training_of(source)
    first = training.groups[0].params[0]
    tensors = {key: tensor for key, tensor in source.tensors.items() if key.role != "step"}
    groups = (replace(training.groups[0]), *training.groups[1:])
    scalars = {Key(first, "step"): Scalar(7)}
    target = lay_out_training_file(
        replace(source, tensors=tensors),
        replace(training, groups=groups, scalars=scalars),
        tmp_path / "out",
    )
    assert set(target.carried) == {Key(name, "step") for name in training.groups[0].params}


def test_weights_alone_make_a_file_of_weights(tmp_path: Path) -> None:
    source = formats.read(FULL / "checkpoint")
    weights = {key: t for key, t in source.tensors.items() if key.role in ("param", "buffer")}
    target = lay_out_training_file(
        replace(source, tensors=weights), TrainingState(), tmp_path / "out"
    )
    assert target.checkpoint.tensors.keys() == weights.keys()
    assert target.dropped == ()


def test_state_without_names_keeps_its_numbers(tmp_path: Path) -> None:
    case = TORCH / "training-file"
    source = formats.read(case / "checkpoint" / "checkpoint.pt")
    target = lay_out_training_file(source, formats.training_of(source), tmp_path / "out")
    perform_conversion(Conversion(source, target), budget=MemoryBudget(), overwrite=False)
    back = formats.read(tmp_path / "out")
    assert back.tensors.keys() == source.tensors.keys()
    assert formats.training_of(back).groups == formats.training_of(source).groups
    key = Key("optimizer.state.2", "exp_avg")
    assert elements(back, key).tobytes() == elements(source, key).tobytes()


def test_numbers_of_another_format_are_read_back_as_they_were_written(tmp_path: Path) -> None:
    case = GOLDEN / "torch-2.13.0-sections" / "numbered"
    source = formats.read(case)
    target = lay_out_training_file(source, formats.training_of(source), tmp_path / "out")
    conversion = Conversion(with_target_sources(source, target), target)
    perform_conversion(conversion, budget=MemoryBudget(), overwrite=False, verify=True)
    back = formats.read(tmp_path / "out")
    ours, theirs = (
        Key(f"{name}.state.1", "exp_avg") for name in ("optimizer", "optimizer_state_dict")
    )
    assert elements(back, ours).tobytes() == elements(source, theirs).tobytes()
    assert not {"exp_avg", "exp_avg_sq", "step"} & dropped(target)


@pytest.mark.parametrize(
    ("changes", "error", "said"),
    [
        ({"groups": ()}, BadRequest, r"\(exp_avg, exp_avg_sq, step\) but no param groups.*--lr"),
        ({"groups": (ParamGroup((), {"lr": 0.1}),)}, Unsupported, "but are in no param group"),
    ],
)
def test_state_that_torch_could_not_number_is_refused(
    tmp_path: Path, changes: dict[str, Any], error: type[Exception], said: str
) -> None:
    with pytest.raises(error, match=said):
        laid_out(FULL, tmp_path, **changes)


def test_groups_without_a_learning_rate_are_refused(tmp_path: Path) -> None:
    groups = formats.training_of(formats.read(FULL / "checkpoint")).groups
    bare = tuple(ParamGroup(group.params, {}) for group in groups)
    with pytest.raises(BadRequest, match="without a learning rate"):
        laid_out(FULL, tmp_path, groups=bare)


def test_the_archive_is_whole_with_right_crcs(tmp_path: Path) -> None:
    convert(DEEPSPEED / "z2-bf16-w2-cpu-adam", tmp_path / "out")
    with zipfile.ZipFile(tmp_path / "out" / "checkpoint.pt") as archive:
        assert archive.testzip() is None


@pytest.mark.torch
@pytest.mark.parametrize(
    "case", ["z2-bf16-w2", "z3-bf16-w2", "z2-bf16-w2-cpu-adam", "z1-fp32-w2-adapter", "z3-fp16-w2"]
)
def test_torch_loads_model_and_optimizer_and_takes_a_step(tmp_path: Path, case: str) -> None:
    torch = pytest.importorskip("torch")
    convert(DEEPSPEED / case, tmp_path / "out")
    source = formats.read(DEEPSPEED / case / "checkpoint")
    groups = formats.training_of(source).groups
    saved = torch.load(tmp_path / "out" / "checkpoint.pt", weights_only=True)
    model = blank_model(source)
    model.load_state_dict(saved["model"])
    named = dict(model.named_parameters())
    mine = [{"params": [(n, named[n]) for n in group.params]} for group in groups]
    optimizer = torch.optim.AdamW(mine, lr=9.0)
    optimizer.load_state_dict(saved["optimizer"])
    for name, parameter in named.items():
        assert same(parameter, source, Key(name, "param"))
        for role, value in optimizer.state.get(parameter, {}).items():
            if Key(name, role) in source.tensors:
                assert same(value, source, Key(name, role)), (name, role)
            assert role != "step" or (value.dtype, value.ndim) == (torch.float32, 0)
    moments = {key for key in source.tensors if key.role == "exp_avg"}
    assert moments == {Key(n, "exp_avg") for n, p in named.items() if p in optimizer.state}
    assert [group["lr"] for group in optimizer.param_groups] == [g.options["lr"] for g in groups]
    before = {name: parameter.detach().clone() for name, parameter in named.items()}
    for key in moments:
        named[key.name].grad = torch.ones_like(named[key.name])
    optimizer.step()
    assert all(not torch.equal(before[key.name], named[key.name]) for key in moments)


def blank_model(source: Checkpoint) -> Any:
    """A module with the source's parameters, buffers and tied names, all of them zero."""
    import torch
    from torch import nn

    root = nn.Module()

    def put(name: str, value: Any) -> None:
        *path, last = name.split(".")
        module = root
        for part in path:
            if part not in module._modules:
                module.add_module(part, nn.Module())
            module = module._modules[part]
        if isinstance(value, nn.Parameter):
            module.register_parameter(last, value)
        else:
            module.register_buffer(last, value)

    made: dict[str, Any] = {}
    for key, tensor in source.tensors.items():
        if key.role in ("param", "buffer"):
            zeros = torch.zeros(tensor.shape, dtype=getattr(torch, tensor.dtype.name))
            trained = key.role == "param"
            made[key.name] = nn.Parameter(zeros, zeros.is_floating_point()) if trained else zeros
            put(key.name, made[key.name])
    for alias, name in source.aliases.items():
        put(alias, made[name])
    return root


def same(value: Any, source: Checkpoint, key: Key) -> bool:
    """Whether a torch tensor has the very bytes of the source."""
    import torch

    raw = value.detach().reshape(-1).contiguous().view(torch.uint8)
    return bytes(raw.numpy()) == elements(source, key).tobytes()


TENSORS: dict[str, Array] = {
    "a.weight": noise(300, 7),
    "empty": noise(0, 3),
    "count": np.array(7),
    "mask": np.array([True, False]),
    "b.weight": noise(5, seed=1),
    "wide": np.arange(5, dtype=np.uint16),
}


def export(tmp_path: Path, **options: object) -> Path:
    source = model(tmp_path / "in", TENSORS, config__json="{}")
    asked = Options(format="torch", dtype="fp32", **options)  # type: ignore[arg-type]
    conversion = prepare_export(source, tmp_path / "out", asked)
    perform_conversion(conversion, budget=MemoryBudget(), overwrite=False)
    return tmp_path / "out"


def test_each_archive_is_whole_with_right_crcs(tmp_path: Path) -> None:
    with zipfile.ZipFile(export(tmp_path) / "pytorch_model.bin") as archive:
        assert archive.testzip() is None
        found = {archive.read(name) for name in archive.namelist() if "/data/" in name}
    assert found == {values.tobytes() for values in TENSORS.values()}


def test_several_files_have_an_index(tmp_path: Path) -> None:
    out = export(tmp_path, max_shard_bytes=8000)
    index = json.loads((out / "pytorch_model.bin.index.json").read_text())
    assert set(index["weight_map"]) == set(TENSORS)
    assert {path.name for path in out.glob("[!.]*")} == {
        "config.json",
        "pytorch_model.bin.index.json",
        "pytorch_model-00001-of-00002.bin",
        "pytorch_model-00002-of-00002.bin",
    }


@pytest.mark.torch
@pytest.mark.parametrize("options", [{}, {"max_shard_bytes": 8000}])
def test_torch_loads_equal_tensors(tmp_path: Path, options: dict[str, object]) -> None:
    torch = pytest.importorskip("torch")
    loaded = {}
    for file in export(tmp_path, **options).glob("*.bin"):
        loaded |= torch.load(file, weights_only=True)
    assert set(loaded) == set(TENSORS)
    for name, values in TENSORS.items():
        assert loaded[name].numpy().tobytes() == values.tobytes(), name
        assert tuple(loaded[name].shape) == values.shape
        assert loaded[name].is_contiguous()
