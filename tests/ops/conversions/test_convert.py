"""Conversions to formats that hold less than their source."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tests.formats.elements import elements
from tests.golden_files import DEEPSPEED, GOLDEN, JOB
from tests.ops.exports import model, noise, weights_of
from zerotools import formats
from zerotools.core.checkpoint import Key
from zerotools.core.errors import BadFile, BadRequest
from zerotools.core.training_state import ParamGroup, TrainingState
from zerotools.formats.format import ReadOptions
from zerotools.ops.conversions.conversion import (
    Conversion,
    Unchanged,
    check_space,
    perform_conversion,
)
from zerotools.ops.conversions.convert import prepare_convert, with_names_of_model
from zerotools.ops.conversions.missing_optimizer_options import (
    RequestedHyperparameters,
    with_missing_options,
)
from zerotools.ops.execution.tile_workers import MemoryBudget
from zerotools.ops.resume_from_other_program.parameter_order_option import AskedOrder

FULL = DEEPSPEED / "z2-bf16-w2" / "checkpoint"
EXPERTS = GOLDEN / "continued/hf-trainer-experts/checkpoint/checkpoint-3"
LAYER = (
    *(f"self_attn.{part}_proj.weight" for part in "qkvo"),
    "mlp.gate.weight",
    "mlp.experts.gate_up_proj",
    "mlp.experts.down_proj",
    "input_layernorm.weight",
    "post_attention_layernorm.weight",
)
NAMES = [
    "model.embed_tokens.weight",
    *(f"model.layers.{number}.{name}" for number in range(2) for name in LAYER),
    "model.norm.weight",
    "lm_head.weight",
]
"""Of a Mixtral in memory, in the order in which transformers 5 registers them."""


def convert(path: Path, out: Path, to: str, **options: Any) -> Conversion:
    conversion = prepare_convert(path, out, to, options)
    assert isinstance(conversion, Conversion)
    perform_conversion(conversion, budget=MemoryBudget(), overwrite=False, verify=True)
    return conversion


def test_safetensors_are_the_masters_as_they_are(tmp_path: Path) -> None:
    convert(FULL, tmp_path / "out", "safetensors")
    source, written = formats.read(FULL), weights_of(tmp_path / "out")
    names = {key.name for key in source.tensors if key.role in ("param", "buffer")}
    assert set(written) == names | set(source.aliases)
    for name, values in written.items():
        key = next(
            Key(source.aliases.get(name, name), r)
            for r in ("param", "buffer")
            if Key(source.aliases.get(name, name), r) in source.tensors
        )
        assert values.tobytes() == elements(source, key).tobytes()
    assert written["embed.weight"].dtype == np.float32


def test_safetensors_in_another_type(tmp_path: Path) -> None:
    convert(FULL, tmp_path / "out", "safetensors", dtype="bf16")
    source = formats.read(FULL)
    master = elements(source, Key("embed.weight", "param"))
    written = weights_of(tmp_path / "out")["embed.weight"]
    assert written.tobytes() == master.astype(ml_dtypes.bfloat16).tobytes()


def test_tied_names_are_left_out_where_the_config_ties_them(tmp_path: Path) -> None:
    config = model(
        tmp_path / "model", {"w": noise(2)}, config__json='{"tie_word_embeddings": true}'
    )
    conversion = prepare_convert(FULL, tmp_path / "out", "safetensors", {}, config_dir=config)
    assert Key("head.weight", "param") not in conversion.target.checkpoint.tensors
    assert any("as config.json says" in note for note in conversion.notes)


def test_the_users_hyperparameters_fill_what_the_groups_lack(tmp_path: Path) -> None:
    elastic = DEEPSPEED / "z2-fp32-w2-elastic" / "checkpoint"
    source = formats.read(elastic)
    known = formats.training_of(source).groups
    assert all("lr" not in group.options for group in known)
    options: dict[str, Any] = {"lr": 0.5, "betas": (0.8, 0.9), "weight_decay": 0.1}
    convert(elastic, tmp_path / "out", "torch", **options)
    groups = formats.training_of(formats.read(tmp_path / "out")).groups
    assert [group.params for group in groups] == [group.params for group in known]
    for group in groups:
        assert options.items() <= group.options.items()


def test_weights_alone_become_one_group_of_all_floats(tmp_path: Path) -> None:
    tensors = {"a": noise(3, 2), "count": np.array([7]), "b": noise(4)}
    source = model(tmp_path / "in", tensors)
    convert(source, tmp_path / "out", "torch", lr=0.1)
    (group,) = formats.training_of(formats.read(tmp_path / "out")).groups
    assert set(group.params) == {"a", "b"}
    assert group.options == {"lr": 0.1}


def test_a_missing_file_of_rules_or_tag_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadRequest, match="run the command without --tag"):
        prepare_convert(
            model(tmp_path / "in", {"a": noise(2)}),
            tmp_path / "out",
            "torch",
            {},
            reading=ReadOptions(tag="x"),
        )


def test_zero_3_through_dcp_to_zero_2_of_other_ranks_keeps_masters_and_moments(
    tmp_path: Path,
) -> None:
    start = DEEPSPEED / "z3-bf16-w2" / "checkpoint"
    convert(start, tmp_path / "dcp", "dcp", world_size=3)
    config = {"bf16": {"enabled": True}, "zero_optimization": {"stage": 2}}
    options = {"world_size": 4, "stage": 2, "ds_config": config}
    convert(tmp_path / "dcp", tmp_path / "two", "deepspeed", **options)
    source, found = formats.read(start), formats.read(tmp_path / "two")
    assert (found.origin.stage, found.origin.world_size) == (2, 4)
    trained = {name for group in formats.training_of(source).groups for name in group.params}
    for key in source.tensors:
        if key.name in trained:
            assert elements(found, key).tobytes() == elements(source, key).tobytes(), key
    before, after = formats.training_of(source), formats.training_of(found)
    assert [group.params for group in after.groups] == [group.params for group in before.groups]
    assert {k: s.value for k, s in after.scalars.items()} == {
        k: s.value for k, s in before.scalars.items()
    }


def test_the_same_format_is_a_reshard_and_keeps_everything(tmp_path: Path) -> None:
    conversion = convert(FULL, tmp_path / "out", "deepspeed", world_size=3)
    assert conversion.target.dropped == ()
    assert "use zerotools reshard" in conversion.notes[0]
    assert isinstance(prepare_convert(JOB, tmp_path / "x", "dcp", {}), Unchanged)
    rewritten = prepare_convert(JOB, tmp_path / "x", "dcp", {"force": True})
    assert isinstance(rewritten, Conversion)
    styled = prepare_convert(JOB, tmp_path / "x", "dcp", {"style": "accelerate"})
    assert isinstance(styled, Conversion)
    with pytest.raises(BadRequest, match="keeps its param groups; leave --lr out"):
        prepare_convert(FULL, tmp_path / "x", "deepspeed", {"lr": 1.0, "world_size": 3})


def test_weights_in_no_known_order_need_one_for_deepspeed(tmp_path: Path) -> None:
    tensors = {"b": noise(5, 3), "a": noise(3, 5), "count": np.array([7])}
    source = model(tmp_path / "in", tensors)
    config = {
        "bf16": {"enabled": True},
        "zero_optimization": {"stage": 3},
        "optimizer": {"type": "AdamW", "params": {"lr": 0.1}},
    }
    options = {"world_size": 2, "ds_config": config}
    with pytest.raises(BadRequest, match=r"the order of .*--order FILE"):
        prepare_convert(source, tmp_path / "out", "deepspeed", options)
    (tmp_path / "order").write_text("b\na\n")
    options["order"] = tmp_path / "order"
    conversion = convert(source, tmp_path / "out", "deepspeed", **options)
    assert any(note.startswith("weights only: ") for note in conversion.notes)
    found = formats.read(tmp_path / "out")
    assert formats.training_of(found).groups[0].params == ("b", "a")
    for name in ("a", "b"):
        assert elements(found, Key(name, "param")).tobytes() == tensors[name].tobytes()


@pytest.mark.parametrize("text", ["", "a\na\n", "c\n"])
def test_an_order_that_is_none_is_refused(tmp_path: Path, text: str) -> None:
    source = model(tmp_path / "in", {"a": noise(2), "b": noise(2)})
    (tmp_path / "order").write_text(text)
    options = {"world_size": 1, "stage": 3, "lr": 0.1, "order": tmp_path / "order"}
    with pytest.raises(BadRequest, match=r"no names|a twice|has c, which is not a parameter"):
        prepare_convert(source, tmp_path / "out", "deepspeed", options)


def test_a_missing_rank_is_refused_and_nothing_is_written(tmp_path: Path) -> None:
    saved = tmp_path / "saved"
    shutil.copytree(DEEPSPEED / "z2-fp32-w2" / "checkpoint", saved)
    (saved / "global_step2" / "zero_pp_rank_1_mp_rank_00_optim_states.pt").unlink()
    for to in ("dcp", "torch", "safetensors"):
        with pytest.raises(BadFile, match=r"rank_1_mp_rank_00_optim_states\.pt is missing"):
            convert(saved, tmp_path / "out", to)
    assert [path.name for path in tmp_path.iterdir()] == ["saved"]


def test_a_disk_that_is_too_small_is_said_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(BadRequest, match=rf"needs {2**62} bytes, but .* free some space"):
        check_space(tmp_path / "not" / "there", 2**62)
    assert list(tmp_path.iterdir()) == []


def test_options_of_the_optimizer_come_from_the_configuration_too(tmp_path: Path) -> None:
    elastic = DEEPSPEED / "z1-bf16-w3-elastic-sgd" / "checkpoint"
    with pytest.raises(BadRequest, match="give weight_decay"):
        prepare_convert(elastic, tmp_path / "out", "dcp", {})
    convert(elastic, tmp_path / "out", "dcp", weight_decay=0.25, momentum=0.5)
    for group in formats.training_of(formats.read(tmp_path / "out")).groups:
        assert group.options["weight_decay"] == 0.25
        assert group.options["lr"] == 0.1


def test_an_option_of_another_optimizer_is_refused(tmp_path: Path) -> None:
    adam, sgd = (DEEPSPEED / name / "checkpoint" for name in ("z2-fp32-w2", "z2-bf16-w2-sgd"))
    with pytest.raises(BadRequest, match="with momentum would keep momentum_buffer; leave --mom"):
        prepare_convert(adam, tmp_path / "out", "dcp", {"momentum": 0.9})
    momentum = DEEPSPEED / "z3-fp32-w2-momentum" / "checkpoint"
    with pytest.raises(BadRequest, match=r"keeps momentum_buffer, and .* leave --betas out"):
        prepare_convert(momentum, tmp_path / "out", "dcp", {"betas": (0.9, 0.9)})
    with pytest.raises(BadRequest, match="has momentum in its param groups"):
        prepare_convert(sgd, tmp_path / "out", "dcp", {"momentum": 0.9})  # it keeps no state


def test_an_order_is_for_groups_that_have_none(tmp_path: Path) -> None:
    source = model(tmp_path / "in", {"a": noise(2), "b": noise(2)})
    read = formats.read(source)
    groups = (ParamGroup(("a", "b"), {"lr": 0.1}),)
    given = RequestedHyperparameters.of({}, None, ["b", "a"])
    unordered = TrainingState(groups=groups, is_ordered=False)
    found, _ = with_missing_options(read, unordered, given)
    assert (found.groups[0].params, found.is_ordered) == (("b", "a"), True)
    with pytest.raises(BadRequest, match="leave --order out"):
        with_missing_options(read, TrainingState(groups=groups), given)
    with pytest.raises(BadRequest, match="--order lacks a"):
        with_missing_options(read, unordered, RequestedHyperparameters.of({}, None, ["b"]))


def test_the_type_that_a_run_computes_in_is_not_made_up_on_the_way(tmp_path: Path) -> None:
    convert(DEEPSPEED / "z3-bf16-w2" / "checkpoint", tmp_path / "dcp", "dcp", world_size=2)
    convert(tmp_path / "dcp", tmp_path / "universal", "universal")
    convert(tmp_path / "universal", tmp_path / "torch", "torch")
    for source in ("dcp", "universal", "torch"):
        with pytest.raises(BadRequest, match="the dtype of the computation"):
            prepare_convert(
                tmp_path / source, tmp_path / "x", "deepspeed", {"world_size": 2, "stage": 3}
            )
    assert formats.training_of(formats.read(tmp_path / "universal")).ds_config is None


@pytest.mark.torch
def test_state_of_experts_gets_the_names_of_the_model_in_memory() -> None:
    import torch

    read = formats.read(EXPERTS)
    joined = read, formats.training_of(read)
    state = torch.load(EXPERTS / "optimizer.pt")["state"]
    vectors = [name for name in NAMES if "norm" in name]
    order = [*(name for name in NAMES if name not in vectors), *vectors]
    shapes = {name: tuple(state[order.index(name)]["exp_avg"].shape) for name in NAMES}
    found, notes = with_names_of_model(*joined, AskedOrder([NAMES], "a model", shapes))
    assert "the layout hf-fused" in notes[0]
    for number, name in enumerate(order):
        for role in ("exp_avg", "exp_avg_sq"):
            own = elements(found.checkpoint, Key(name, role))
            assert (own == state[number][role].numpy()).all(), name
    assert {k.name for k in found.checkpoint.tensors if k.role == "param"} == set(NAMES)
    assert [len(group) for group in found.groups] == [len(order) - len(vectors), len(vectors)]


def test_the_order_of_another_model_is_refused() -> None:
    read = formats.read(EXPERTS)
    joined = read, formats.training_of(read)
    other = [f"{name}.other" for name in NAMES]
    with pytest.raises(BadRequest, match="which is not a weight of"):
        with_names_of_model(*joined, AskedOrder([other], "a model", dict.fromkeys(other, (2, 2))))
