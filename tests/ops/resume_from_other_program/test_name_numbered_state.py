"""Optimizers with numbers for names, saved by torch: every moment tells whose it is.

`exp_avg` is one number for each parameter. Positions are wrong about layers of one shape where they
are sorted as text (10 before 2), reversed, or in two groups.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import ml_dtypes  # noqa: F401  (safetensors finds bfloat16 only where it is imported)
import numpy as np
import pytest
from safetensors.numpy import load_file

from tests.formats.elements import elements
from tests.golden_files import DEEPSPEED, GOLDEN
from tests.layouts import load
from zerotools import formats
from zerotools.core.checkpoint import Key
from zerotools.core.errors import BadRequest, Unsupported
from zerotools.formats.deepspeed.writing.lay_out_converted import ONE_STEP_LESS
from zerotools.formats.torch_optimizers import NAMED_BY_SHAPE, NUMBERED_STATE
from zerotools.ops.conversions import convert, reshard
from zerotools.ops.conversions.conversion import Conversion, perform_conversion
from zerotools.ops.conversions.convert import prepare_convert
from zerotools.ops.conversions.convert_foreign_to_job import prepare_job
from zerotools.ops.execution.tile_workers import MemoryBudget
from zerotools.ops.resume_from_other_program.name_numbered_state import NAMED_BY_MASTERS, with_names
from zerotools.ops.resume_from_other_program.parameter_order_option import AskedOrder
from zerotools.runs.optimizer_names_record import read_named_order

pytestmark = pytest.mark.torch

LAYERS = 11
LAYER = {
    "self_attn.q_proj.weight": (8, 8),
    "self_attn.k_proj.weight": (8, 8),
    "self_attn.v_proj.weight": (8, 8),
    "self_attn.o_proj.weight": (8, 8),
    "mlp.gate_proj.weight": (16, 8),
    "mlp.up_proj.weight": (16, 8),
    "mlp.down_proj.weight": (8, 16),
    "input_layernorm.weight": (8,),
    "post_attention_layernorm.weight": (8,),
}
SHAPES: dict[str, tuple[int, ...]] = {
    "model.embed_tokens.weight": (32, 8),
    **{f"model.layers.{n}.{name}": shape for n in range(LAYERS) for name, shape in LAYER.items()},
    "model.norm.weight": (8,),
    "lm_head.weight": (32, 8),
}
"""Of a Llama, in the order in which transformers registers them."""
NAMES = list(SHAPES)
CONFIG = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 8,
    "intermediate_size": 16,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 2,
    "vocab_size": 32,
    "tie_word_embeddings": False,
}
STAGE_2_FP32 = {"zero_optimization": {"stage": 2}, "fp16": {"enabled": False}}
TARGETS: dict[str, dict[str, Any]] = {
    "dcp": {"world_size": 2},
    "universal": {},
    "deepspeed": {"world_size": 2, "ds_config": STAGE_2_FP32},
    "job": {"world_size": 2},
}


def groups_of(kind: str) -> list[list[str]]:
    """The names in the order in which the optimizer of a kind got them."""
    if kind == "reversed":
        layers = [[n for n in NAMES if n.startswith(f"model.layers.{k}.")] for k in range(LAYERS)]
        return [[NAMES[0], *(name for layer in reversed(layers) for name in layer), *NAMES[-2:]]]
    if kind == "decay":
        matrices = [name for name in NAMES if len(SHAPES[name]) > 1]
        return [matrices, [name for name in NAMES if name not in matrices]]
    return [NAMES]


def saved(place: Path, kind: str, prefix: str = "") -> Path:
    """A file of plain torch, with the config of its model beside it."""
    import torch

    weights = {name: torch.nn.Parameter(torch.zeros(shape)) for name, shape in SHAPES.items()}
    groups = [{"params": [weights[name] for name in group]} for group in groups_of(kind)]
    optimizer = torch.optim.AdamW(groups, lr=0.01)
    for number, name in enumerate(NAMES):
        state = {"exp_avg": float(number), "exp_avg_sq": number + 0.5}
        optimizer.state[weights[name]] = {
            "step": torch.tensor(3.0),
            **{role: torch.full(SHAPES[name], value) for role, value in state.items()},
        }
    listed = sorted(weights) if kind == "sorted" else NAMES
    model = {prefix + name: weights[name].detach() for name in listed}
    place.mkdir()
    torch.save({"model": model, "optimizer": optimizer.state_dict()}, place / "checkpoint.pt")
    (place / "config.json").write_text(json.dumps(CONFIG))
    return place


def order_file(place: Path, groups: list[list[str]]) -> Path:
    place.write_text("\n\n".join("\n".join(group) for group in groups))
    return place


def converted(source: Path, out: Path, to: str, **options: Any) -> Path:
    if to == "job":
        done = prepare_job(source, out, options)
    else:
        prepared = convert.prepare_convert(source, out, to, options)
        assert isinstance(prepared, Conversion)
        done = prepared
    perform_conversion(done, budget=MemoryBudget(), overwrite=False, verify=True)
    return out


def assert_own_moments(path: Path) -> None:
    """Every parameter has the moments that were saved for it."""
    found = formats.read(path)
    for number, name in enumerate(NAMES):
        for role, value in (("exp_avg", number), ("exp_avg_sq", number + 0.5)):
            moment = elements(found, Key(name, role))
            assert moment.shape == SHAPES[name]
            assert np.unique(moment).tolist() == [value], (name, role)


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    place = tmp_path_factory.mktemp("numbered")
    return {kind: saved(place / kind, kind) for kind in ("sorted", "reversed", "decay")}


@pytest.mark.parametrize("to", TARGETS)
@pytest.mark.parametrize("kind", ["sorted", "reversed", "decay"])
def test_no_name_is_guessed(
    checkpoints: dict[str, Path], tmp_path: Path, kind: str, to: str
) -> None:
    with pytest.raises(
        BadRequest,
        match=r"has numbers instead of weight names .* \(.*; pass --order model if .* --order FILE",
    ):
        converted(checkpoints[kind], tmp_path / "out", to, **TARGETS[to])


def test_the_order_of_a_model_is_not_that_of_adapters(tmp_path: Path) -> None:
    source = GOLDEN / "verl-0.9.1/fsdp2-w2-lora/checkpoint"
    with pytest.raises(BadRequest, match="no file has the names; pass --order FILE with the names"):
        converted(source, tmp_path / "out", "dcp")
    read = formats.read(source)
    halves = [key.name for key in read.tensors if ".lora_" in key.name and key.role == "param"]
    order = order_file(tmp_path / "order.txt", [halves])
    found = formats.read(converted(source, tmp_path / "out", "dcp", order=order))
    moved = {key.name for key in found.tensors if key.role == "exp_avg"}
    assert moved == set(halves)


@pytest.mark.parametrize("to", [*TARGETS, "torch"])
def test_names_of_a_file_go_to_every_target(
    checkpoints: dict[str, Path], tmp_path: Path, to: str
) -> None:
    order = order_file(tmp_path / "order.txt", groups_of("decay"))
    options = TARGETS.get(to, {})
    out = converted(checkpoints["decay"], tmp_path / "out", to, order=order, **options)
    assert_own_moments(out)
    record = read_named_order(out)
    assert record is not None
    assert record.known_by == f"the names in {order}"
    assert [list(group) for group in record.groups] == groups_of("decay")
    assert any(
        "optimizer's parameters comes from" in note for note in formats.read(out).origin.notes
    )


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_torch_loads_the_moments_of_reversed_layers(
    checkpoints: dict[str, Path], tmp_path: Path
) -> None:
    import torch
    import torch.distributed.checkpoint as dcp

    order = order_file(tmp_path / "order.txt", groups_of("reversed"))
    out = converted(checkpoints["reversed"], tmp_path / "out", "dcp", order=order, world_size=3)
    state = {f"optimizer.state.{name}.exp_avg": torch.zeros(SHAPES[name]) for name in NAMES}
    dcp.load(state, checkpoint_id=out, no_dist=True)
    for number, name in enumerate(NAMES):
        assert state[f"optimizer.state.{name}.exp_avg"].unique().tolist() == [number]


@pytest.mark.full
def test_the_order_of_the_model_is_what_transformers_registers(
    checkpoints: dict[str, Path], tmp_path: Path
) -> None:
    source = checkpoints["sorted"]
    assert_own_moments(converted(source, tmp_path / "out", "dcp", order="model", world_size=1))
    record = read_named_order(tmp_path / "out")
    assert record is not None
    assert record.groups == [NAMES]
    assert record.known_by.startswith(
        "the order of the parameters in LlamaForCausalLM of transformers "
    )


def test_each_group_is_in_the_order_of_the_model(
    checkpoints: dict[str, Path], tmp_path: Path
) -> None:
    matrices = frozenset(groups_of("decay")[0])
    order = AskedOrder([NAMES], "the order of a model", SHAPES, matrices)
    read = formats.read(checkpoints["decay"])
    named = with_names(read, formats.training_of(read), order)
    assert [list(group) for group in named.groups] == groups_of("decay")
    other = replace(order, shapes={**SHAPES, NAMES[5]: (24, 8)})
    with pytest.raises(BadRequest, match=r"gate_proj.weight has shape \[16, 8\] .* \[24, 8\]"):
        with_names(read, formats.training_of(read), other)
    wrapped = formats.read(saved(tmp_path / "wrapped", "sorted", "module."))
    named = with_names(wrapped, formats.training_of(wrapped), order)
    assert named.groups[0][0] == "module.model.embed_tokens.weight"


@pytest.mark.full  # transformers is asked, which takes seconds to import
def test_the_order_of_a_model_that_transformers_does_not_know_is_refused(tmp_path: Path) -> None:
    source = saved(tmp_path / "in", "sorted")
    (source / "config.json").write_text('{"model_type": "of nobody"}')
    with pytest.raises(BadRequest, match=r"cannot build the model .*of nobody.*--order FILE"):
        converted(source, tmp_path / "out", "dcp", order="model", world_size=1)


def test_an_order_that_cannot_be_had_is_refused(tmp_path: Path) -> None:
    source = saved(tmp_path / "in", "sorted")
    (source / "config.json").unlink(missing_ok=True)
    with pytest.raises(BadRequest, match=r"which is not in .*; pass --config-dir DIR"):
        converted(source, tmp_path / "out", "dcp", order="model", world_size=1)
    short = order_file(tmp_path / "short", [NAMES[1:]])
    with pytest.raises(BadRequest, match=r"state of 102 parameters .* the order has 101"):
        converted(source, tmp_path / "out", "dcp", order=short, world_size=1)
    unequal = order_file(tmp_path / "unequal", [NAMES[:3], NAMES[3:]])
    with pytest.raises(BadRequest, match=r"--order has 3 and 99 names"):
        converted(source, tmp_path / "out", "dcp", order=unequal, world_size=1)


def test_the_optimizer_can_be_left_out(checkpoints: dict[str, Path], tmp_path: Path) -> None:
    options = {"world_size": 1, "weights_only": True}
    prepared = convert.prepare_convert(checkpoints["sorted"], tmp_path / "out", "dcp", options)
    assert isinstance(prepared, Conversion)
    dropped = {each.what: each.why for each in prepared.target.dropped}
    assert dropped["exp_avg"] == "left out by --weights-only"
    perform_conversion(prepared, budget=MemoryBudget(), overwrite=False, verify=True)
    assert {key.role for key in formats.read(tmp_path / "out").tensors} == {"param"}


def test_numbers_stay_where_names_are_not_needed(
    checkpoints: dict[str, Path], tmp_path: Path
) -> None:
    import torch

    out = converted(checkpoints["reversed"], tmp_path / "out", "torch")
    state = torch.load(out / "checkpoint.pt")["optimizer"]["state"]
    held = [NAMES.index(name) for name in groups_of("reversed")[0]]
    assert [int(state[number]["exp_avg"].mean()) for number in range(len(NAMES))] == held


FP32, BF16, FP16 = ("z0-fp32-w2", "z0-bf16-w2", "z0-fp16-w1")
STATELESS = "z0-fp32-w2-before-first-step"
ORDER = (
    "embed.weight\nlayer.weight\ncube.weight\nunused.weight\n\nlayer.bias\nnorm.weight\nnorm.bias\n"
)


def planned(case: str, out: Path, to: str, **options: Any) -> Conversion:
    conversion = prepare_convert(DEEPSPEED / case / "checkpoint", out, to, options)
    assert isinstance(conversion, Conversion)
    return conversion


def convert_case(case: str, out: Path, to: str, **options: Any) -> Conversion:
    conversion = planned(case, out, to, **options)
    perform_conversion(conversion, budget=MemoryBudget(), overwrite=False)
    return conversion


@pytest.mark.parametrize(
    ("case", "to", "options"),
    [
        (FP32, "deepspeed", {"stage": 2}),
        (FP16, "deepspeed", {"stage": 1, "world_size": 3}),
        (BF16, "deepspeed", {"stage": 1}),
        (BF16, "universal", {}),
        (BF16, "dcp", {}),
        (BF16, "torch", {}),
    ],
)
def test_masters_and_moments_get_the_names_that_masters_or_shapes_prove(
    case: str, to: str, options: dict[str, Any], tmp_path: Path
) -> None:
    conversion = convert_case(case, tmp_path / "out", to, **options)
    proof = NAMED_BY_SHAPE if case == FP32 else NAMED_BY_MASTERS
    assert proof in conversion.notes
    assert NUMBERED_STATE not in conversion.notes
    found = formats.read(tmp_path / "out")
    compared = 0
    for name, values in load_file(DEEPSPEED / case / "truth.safetensors").items():
        key = Key(*name.rsplit("|", 1))
        if key.role in ("param", "exp_avg", "exp_avg_sq"):
            compared += 1
            assert load(found, key).tobytes() == values.tobytes(), key
    assert compared >= 12
    before = formats.training_of(formats.read(DEEPSPEED / case / "checkpoint"))
    after = formats.training_of(found)
    assert not after.unnamed
    assert all("lr" in group.options for group in after.groups)
    assert not found.problems
    if to == "deepspeed":
        assert after.steps == before.steps


def test_an_order_is_needed_where_nothing_proves_the_names(tmp_path: Path) -> None:
    for to, options in (("dcp", {}), ("universal", {}), ("deepspeed", {"stage": 1})):
        with pytest.raises(
            BadRequest, match=r"has numbers instead of weight names.*--order model.*--weights-only"
        ):
            planned(STATELESS, tmp_path / "out", to, **options)
    order = tmp_path / "order"
    order.write_text(ORDER)
    convert_case(STATELESS, tmp_path / "out", "deepspeed", stage=1, order=str(order))
    groups = formats.training_of(formats.read(tmp_path / "out")).groups
    assert [list(group.params) for group in groups] == [
        part.split() for part in ORDER.split("\n\n")
    ]


LAYER_NAMES = tuple(
    f"layers.{number}.{part}" for number in (0, 1, 2) for part in ("weight", "bias")
)
REVERSED = [name for part in ("weight", "bias") for name in LAYER_NAMES[::-1] if part in name]


def equal_layers(root: Path, *, is_flat: bool, names: Sequence[str] = REVERSED) -> Path:
    """A run in fp16 without ZeRO, of layers that have the same shapes; its optimizer has them in
    two groups, in the order `names`. With `is_flat` it is FP16_Optimizer's, else that of
    FP16_UnfusedOptimizer."""
    import torch

    torch.manual_seed(3)
    masters = {n: torch.randn((5, 4) if "weight" in n else (5,)) for n in LAYER_NAMES}
    groups = [[n for n in names if "weight" in n], [n for n in names if "bias" in n]]
    tree = torch.load(
        DEEPSPEED / FP16 / "checkpoint" / "global_step4" / "mp_rank_00_model_states.pt",
        weights_only=False,
    )
    saved = tree["optimizer"]
    joined = [torch.cat([masters[n].flatten() for n in group]) for group in groups]
    values = joined if is_flat else [masters[n] for n in names]
    sizes = (1, 1) if is_flat else (3, 3)
    inner = saved["optimizer_state_dict"]
    inner["state"] = {
        i: {"step": torch.tensor(3.0), "exp_avg": v * 2, "exp_avg_sq": v * 3}
        for i, v in enumerate(values)
    }
    for group, first, count in zip(inner["param_groups"], (0, sizes[0]), sizes, strict=True):
        group["params"] = list(range(first, first + count))
    del saved["fp32_groups"]
    if is_flat:
        saved["fp32_groups_flat"] = joined
    else:
        saved["fp32_groups"] = [[masters[n] for n in group] for group in groups]
    tree["module"] = {name: master.half() for name, master in masters.items()}
    (root / "global_step4").mkdir(parents=True)
    torch.save(tree, root / "global_step4" / "mp_rank_00_model_states.pt")
    (root / "latest").write_text("global_step4")
    return root


@pytest.mark.torch
@pytest.mark.parametrize("is_flat", [True, False], ids=["flat", "by number"])
@pytest.mark.parametrize("has_order", [True, False], ids=["order", "proof"])
def test_equal_layers_are_told_apart_by_their_masters(
    is_flat: bool, has_order: bool, tmp_path: Path
) -> None:
    import torch

    source = equal_layers(tmp_path / "run", is_flat=is_flat)
    order = tmp_path / "order"
    order.write_text("\n".join(REVERSED[:3]) + "\n\n" + "\n".join(REVERSED[3:]))
    options = {"order": str(order)} if has_order else {}
    conversion = prepare_convert(source, tmp_path / "out", "deepspeed", {"stage": 2, **options})
    assert isinstance(conversion, Conversion)
    perform_conversion(conversion, budget=MemoryBudget(), overwrite=False)
    found = formats.read(tmp_path / "out")
    torch.manual_seed(3)
    for name in LAYER_NAMES:
        master = torch.randn((5, 4) if "weight" in name else (5,)).numpy()
        for role, values in (("param", master), ("exp_avg", master * 2)):
            assert load(found, Key(name, role)).tobytes() == values.tobytes(), (name, role)
    groups = formats.training_of(found).groups
    assert [name for group in groups for name in group.params] == REVERSED
    assert {scalar.value for scalar in formats.training_of(found).scalars.values()} == {3.0}


@pytest.mark.torch
@pytest.mark.parametrize("is_flat", [True, False], ids=["flat", "by number"])
def test_an_order_that_the_masters_contradict_is_refused(is_flat: bool, tmp_path: Path) -> None:
    source = equal_layers(tmp_path / "run", is_flat=is_flat)
    order = tmp_path / "order"
    order.write_text("\n".join(sorted(REVERSED[:3])) + "\n\n" + "\n".join(REVERSED[3:]))
    with pytest.raises(BadRequest, match=r"layers\.0\.weight to number 0 .* not equal to that"):
        prepare_convert(source, tmp_path / "out", "dcp", {"order": str(order)})


@pytest.mark.torch
def test_a_flat_group_of_another_size_is_refused(tmp_path: Path) -> None:
    source = equal_layers(tmp_path / "run", is_flat=True)
    order = tmp_path / "order"
    order.write_text("\n".join(REVERSED[:2]) + "\n\n" + "\n".join(REVERSED[3:]))
    with pytest.raises(BadRequest, match=r"group 0 .* has 60 elements, .* with 40 elements"):
        prepare_convert(source, tmp_path / "out", "dcp", {"order": str(order)})
    order.write_text("\n".join(REVERSED))
    with pytest.raises(BadRequest, match=r"2 flat tensors.*--order has 1 group"):
        prepare_convert(source, tmp_path / "out", "dcp", {"order": str(order)})


def test_weights_alone_say_that_the_optimizer_is_left_out(tmp_path: Path) -> None:
    conversion = planned(BF16, tmp_path / "out", "dcp", weights_only=True)
    assert {"exp_avg", "exp_avg_sq"} <= {dropped.what for dropped in conversion.target.dropped}
    assert not any("has no optimizer state, so" in note for note in conversion.notes)


def test_a_step_that_the_run_does_not_count_is_left_out(tmp_path: Path) -> None:
    conversion = convert_case(BF16, tmp_path / "out", "deepspeed", stage=3)
    assert ONE_STEP_LESS in conversion.notes
    found = formats.read(tmp_path / "out")
    assert not found.problems
    steps = {scalar.value for scalar in formats.training_of(found).scalars.values()}
    assert steps == {formats.training_of(found).steps}


def test_reshard_names_the_command_that_changes_the_stage(tmp_path: Path) -> None:
    with pytest.raises(Unsupported, match=r"use zerotools convert --to deepspeed --stage 1"):
        reshard.prepare_reshard(DEEPSPEED / BF16 / "checkpoint", tmp_path / "out", world_size=3)


@pytest.mark.parametrize("target", ["torch", "universal", "deepspeed"])
def test_two_optimizers_of_different_classes_become_no_single_one(
    tmp_path: Path, target: str
) -> None:
    import torch
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict

    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4))
    optimizers = {
        "opt_a": torch.optim.AdamW(model[0].parameters()),
        "opt_b": torch.optim.SGD(model[1].parameters(), lr=0.1, momentum=0.9),
    }
    model(torch.ones(2, 4)).sum().backward()
    for each in optimizers.values():
        each.step()
    states = {name: get_optimizer_state_dict(model, each) for name, each in optimizers.items()}
    saved = tmp_path / "saved"
    with pytest.warns(UserWarning, match=r"torch\.distributed is disabled"):
        dcp.save({"model": model.state_dict(), **states}, checkpoint_id=saved, no_dist=True)
    with pytest.raises(Unsupported, match=r"several optimizers \(AdamW and SGD\)"):
        prepare_convert(saved, tmp_path / "out", target, {})
    assert prepare_convert(saved, tmp_path / "out", "torch", {"weights_only": True})
