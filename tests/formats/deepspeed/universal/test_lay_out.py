"""Golden checkpoints, laid out as universal ones and read again: the same bytes, the same run."""

from __future__ import annotations

import json
import re
import zipfile
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from tests.formats.copying import write
from tests.formats.deepspeed.describing import contents
from tests.golden_files import DEEPSPEED, FOREIGN, JOB
from zerotools.core.checkpoint import Checkpoint, Key
from zerotools.core.dtypes import FLOAT32
from zerotools.core.errors import BadFile, BadRequest, Unsupported
from zerotools.core.target import Target
from zerotools.core.training_state import ParamGroup, Scalar, TrainingState
from zerotools.formats import read, training_of
from zerotools.formats.deepspeed.universal.lay_out import lay_out_universal, max_ranks
from zerotools.io.torchzip.pickle_values import StoredTensor
from zerotools.io.torchzip.pt_file import TorchFile

REFUSED = ("z0-", "pipeline-z0", "experts", "autoep")
CASES = sorted(
    path.parent
    for path in DEEPSPEED.glob("*/truth.json")
    if not path.parent.name.startswith(REFUSED)
)
MODEL, STAGE_3_MODEL = "mp_rank_00_model_states.pt", "zero_pp_rank_0_mp_rank_00_model_states.pt"


def golden(name: str) -> Checkpoint:
    return read(DEEPSPEED / name / "checkpoint")


def laid_out(source: Checkpoint, out: Path, stage: int | None = None) -> Target:
    return lay_out_universal(source, training_of(source), out, stage=stage)


def tree_of(out: Path, name: str) -> Any:
    (tag,) = (path for path in out.iterdir() if path.is_dir())
    return TorchFile.open(tag, name).tree


@pytest.mark.parametrize("case", CASES, ids=lambda path: path.name)
def test_every_tensor_and_the_run_arrive(case: Path, tmp_path: Path) -> None:
    same_after(case, None, tmp_path)


@pytest.mark.parametrize("name", ["z1-fp32-w1", "z2-bf16-w2-cpu-adam", "z3-bf16-w2"])
def test_they_arrive_for_stage_3_alone(name: str, tmp_path: Path) -> None:
    same_after(DEEPSPEED / name, 3, tmp_path)


def same_after(case: Path, stage: int | None, tmp_path: Path) -> None:
    source = read(case / "checkpoint")
    found = read(write(source, laid_out(source, tmp_path / "out", stage)))
    assert contents(found) == contents(source)
    assert found.origin.format == "universal"
    assert found.aliases == source.aliases
    assert not found.problems
    ours, theirs = training_of(found), training_of(source)
    for each in fields(TrainingState):
        if each.name == "optimizer_wrapper":  # a universal checkpoint is of no wrapper
            assert ours.optimizer_wrapper is None
        elif each.name == "client":
            assert ours.client.keys() == theirs.client.keys()
        else:
            assert getattr(ours, each.name) == getattr(theirs, each.name), each.name


@pytest.mark.parametrize("name", ["z2-fp16-w2", "z3-bf16-w2-legacy", "z1-bf16-w2-client-state"])
def test_every_record_has_the_right_checksum(name: str, tmp_path: Path) -> None:
    source = golden(name)
    files = list(write(source, laid_out(source, tmp_path / "out")).rglob("*.pt"))
    assert len(files) > 20
    for file in files:
        with zipfile.ZipFile(file) as archive:
            assert archive.testzip() is None, file


def test_one_tag_is_for_every_stage_and_any_number_of_ranks(tmp_path: Path) -> None:
    source = golden("z3-bf16-w2")
    out = write(source, laid_out(source, tmp_path / "out"))
    assert sorted(path.name for path in out.glob("[!.]*")) == [
        "global_step2_universal",
        "latest_universal",
    ]
    assert (out / "latest_universal").read_text() == "global_step2_universal"
    tag = out / "global_step2_universal"
    assert sorted(path.name for path in tag.iterdir()) == [MODEL, "zero", STAGE_3_MODEL]
    weight = tree_of(out, "zero/embed.weight/exp_avg.pt")["param"]
    assert isinstance(weight, StoredTensor)
    assert weight.shape == (11, 8)
    # Frozen weights are whole, which stage 3 partitions; others are where zero/ has them.
    module = tree_of(out, MODEL)["module"]
    assert module["frozen.weight"].shape == (5, 3)
    assert module["embed.weight"].shape == (0,)
    assert {value.shape for value in tree_of(out, STAGE_3_MODEL)["module"].values()} == {(0,)}


def test_for_stage_3_alone_vectors_are_bare_as_older_versions_read_them(tmp_path: Path) -> None:
    source = golden("z2-fp32-w2")
    out = write(source, laid_out(source, tmp_path / "out", 3))
    flat = tree_of(out, "zero/embed.weight/fp32.pt")
    assert isinstance(flat, StoredTensor)
    assert flat.shape == (88,)
    for_2 = write(source, laid_out(source, tmp_path / "flat", 2))
    assert not (for_2 / "global_step2_universal" / STAGE_3_MODEL).exists()


def test_stage_3_is_given_only_the_options_that_all_groups_share(tmp_path: Path) -> None:
    """It takes those of the first group for all."""
    source = golden("z2-bf16-w2")
    target = laid_out(source, tmp_path / "out")
    tree = tree_of(write(source, target), "zero/optimizer_state.pt")
    (shared,) = tree["optimizer_state_dict"]["param_groups"]
    assert shared["betas"] == (0.9, 0.95)
    assert not {"lr", "weight_decay"} & shared.keys()
    assert [group["lr"] for group in tree["param_groups"]] == [0.01, 0.02]
    assert any(
        "(lr, weight_decay) keep the values that the resuming run sets" in n for n in target.notes
    )


def test_nothing_of_the_source_s_partitions_is_left(tmp_path: Path) -> None:
    source = golden("z2-bf16-w3")
    tree = tree_of(write(source, laid_out(source, tmp_path / "out")), "zero/optimizer_state.pt")
    partitions = {"partition_count", "group_paddings", "param_slice_mappings"}
    assert not partitions & tree.keys()


NOTES = {
    "z2-bf16-w2": "DeepSpeed does not restore frozen weights and buffers",
    "z2-bf16-w2-round-robin": "must leave round_robin_gradients out",
    "z1-fp32-w2-momentum": "stage 3 does not load the output: .* has no exp_avg, exp_avg_sq, step",
    "z1-fp32-w2-amsgrad": "stage 3 does not load max_exp_avg_sq",
    "z2-bf16-w2-bf16-masters": "casts exp_avg, exp_avg_sq to the type of the masters",
    "z2-fp32-w3-tiny-group": "at most 2 ranks can share group 1",
    "z3-fp32-w2-sub-groups": "share one step tensor",
    "tensor-parallel-z2-fp32-w2": "the 2 model-parallel ranks are merged",
}


@pytest.mark.parametrize("name", NOTES)
def test_what_deepspeed_s_loaders_lack_is_said(name: str, tmp_path: Path) -> None:
    notes = "\n".join(laid_out(golden(name), tmp_path / "out").notes)
    assert '"checkpoint": {"load_universal": true}' in notes
    assert re.search(NOTES[name], notes), notes


def test_ranks_that_have_a_part_of_a_group() -> None:
    # Three elements: partitions of 2 for two ranks; the third of three would begin behind the end.
    assert max_ranks({"scale": (3,)}) == 2
    assert max_ranks({"one": (1,)}) == 1
    assert max_ranks({"large": (4096, 4096)}) == 1024


def test_before_the_first_step_stage_3_begins_with_zeros(tmp_path: Path) -> None:
    source = golden("z3-bf16-w2-before-first-step")
    target = laid_out(source, tmp_path / "out", 3)
    found = read(write(source, target))
    zeros = {key: value for key, value in contents(found).items() if "|exp_avg" in key}
    assert len(zeros) == 14
    assert not any(any(data) for _, data in zeros.values())
    assert set(training_of(found).scalars.values()) == {Scalar(0.0, FLOAT32)}
    assert any("zeros, the initial value, are written" in note for note in target.notes)
    flat = read(write(source, laid_out(source, tmp_path / "flat", 2)))
    assert contents(flat) == contents(source)


def test_a_job_of_another_format_arrives(tmp_path: Path) -> None:
    source = read(JOB)
    training = training_of(source)
    target = lay_out_universal(source, training, tmp_path / "out")
    found = read(write(source, target))
    trained = {name for group in training.groups for name in group.params}
    before = {
        key: data for key, data in contents(source).items() if key.partition("|")[0] in trained
    }
    assert before.items() <= contents(found).items()
    again = training_of(found)
    assert (again.groups, again.steps) == (training.groups, training.steps)
    assert again.is_ordered == training.is_ordered


def test_a_run_that_saved_no_step_has_that_of_its_optimizer(tmp_path: Path) -> None:
    source = read(FOREIGN / "fsdp2-accelerate" / "checkpoint")
    training = training_of(source)
    assert training.steps is None
    target = lay_out_universal(source, training, tmp_path / "out")
    steps = {scalar.value for scalar in training.scalars.values()}
    assert {training_of(read(write(source, target))).steps} == steps
    assert target.checkpoint.origin.tag == f"global_step{steps.pop():g}_universal"


def test_a_parameter_that_no_gradient_reached_begins_with_zeros(tmp_path: Path) -> None:
    source = golden("z2-fp32-w2")
    name = training_of(source).groups[0].params[0]
    without = replace(
        source,
        tensors={k: t for k, t in source.tensors.items() if k.name != name or k.role == "param"},
    )
    training = training_of(source)
    scalars = {key: value for key, value in training.scalars.items() if key.name != name}
    target = lay_out_universal(without, replace(training, scalars=scalars), tmp_path / "out")
    assert {key for key in target.carried if key.name == name} == {
        Key(name, "exp_avg"),
        Key(name, "exp_avg_sq"),
    }
    found = contents(read(write(without, target)))
    assert not any(found[f"{name}|exp_avg"][1])


def test_what_cannot_be_laid_out_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(Unsupported, match="has experts"):
        laid_out(golden("experts-z2-bf16-w2"), tmp_path / "out")
    with pytest.raises(BadRequest, match="not known which parameters were trained"):
        laid_out(golden("z0-bf16-w2"), tmp_path / "out")
    source = golden("z2-fp32-w2")
    with pytest.raises(BadRequest, match="stage 1, 2 or 3, not 4"):
        laid_out(source, tmp_path / "out", 4)
    training = training_of(source)
    scalars = {**training.scalars, Key("embed.weight", "step"): Scalar(9.0, FLOAT32)}
    with pytest.raises(Unsupported, match=r"group 0 are at steps \[2\.0, 9\.0\]"):
        lay_out_universal(source, replace(training, scalars=scalars), tmp_path / "out")


def test_a_name_that_leaves_the_output_is_refused(tmp_path: Path) -> None:
    source = golden("z2-fp32-w2")
    for name in ("../outside", "a/b", "/etc/passwd", "x" * 300):
        tensors = {Key(name, "param"): source.tensors[Key("embed.weight", "param")]}
        training = replace(training_of(source), groups=(ParamGroup((name,), {}),), scalars={})
        with pytest.raises(BadFile, match="cannot be the name of a file"):
            lay_out_universal(replace(source, tensors=tensors), training, tmp_path / "out")


def test_what_lies_around_comes_along(tmp_path: Path) -> None:
    saved = DEEPSPEED / "hf-trainer-z2-bf16-w2" / "checkpoint" / "checkpoint-2"
    source = read(saved)
    out = write(source, laid_out(source, tmp_path / "out"))
    assert {"trainer_state.json", "config.json", "latest_universal"} <= {
        p.name for p in out.iterdir()
    }
    assert not (out / "latest").exists()
    assert json.loads((out / "config.json").read_text())
