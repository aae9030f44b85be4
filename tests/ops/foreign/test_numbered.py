"""DeepSpeed without ZeRO to stages 1 and 2 and to other formats, against what the engine held."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import ml_dtypes  # noqa: F401  (safetensors finds bfloat16 only where it is imported)
import pytest
from safetensors.numpy import load_file

from tests.golden_files import DEEPSPEED
from tests.layouts import load
from zerotools import formats
from zerotools.core.checkpoint import Key
from zerotools.core.errors import BadRequest, Unsupported
from zerotools.formats.deepspeed.writing.lay_out_other_format import ONE_STEP_LESS
from zerotools.formats.torch_optimizers import NAMED_BY_SHAPE, NUMBERED_STATE
from zerotools.ops.conversions import reshard
from zerotools.ops.conversions.conversion import Conversion, perform
from zerotools.ops.conversions.convert import prepare
from zerotools.ops.execution.execute import MemoryBudget
from zerotools.ops.foreign.numbered import NAMED_BY_MASTERS

FP32, BF16, FP16 = ("z0-fp32-w2", "z0-bf16-w2", "z0-fp16-w1")
STATELESS = "z0-fp32-w2-before-first-step"
ORDER = (
    "embed.weight\nlayer.weight\ncube.weight\nunused.weight\n\nlayer.bias\nnorm.weight\nnorm.bias\n"
)


def planned(case: str, out: Path, to: str, **options: Any) -> Conversion:
    conversion = prepare(DEEPSPEED / case / "checkpoint", out, to, options)
    assert isinstance(conversion, Conversion)
    return conversion


def convert(case: str, out: Path, to: str, **options: Any) -> Conversion:
    conversion = planned(case, out, to, **options)
    perform(conversion, budget=MemoryBudget(), overwrite=False)
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
    conversion = convert(case, tmp_path / "out", to, **options)
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
            BadRequest, match=r"numbers its optimizer state.*--order model.*--weights-only"
        ):
            planned(STATELESS, tmp_path / "out", to, **options)
    order = tmp_path / "order"
    order.write_text(ORDER)
    convert(STATELESS, tmp_path / "out", "deepspeed", stage=1, order=str(order))
    groups = formats.training_of(formats.read(tmp_path / "out")).groups
    assert [list(group.params) for group in groups] == [
        part.split() for part in ORDER.split("\n\n")
    ]


LAYERS = tuple(f"layers.{number}.{part}" for number in (0, 1, 2) for part in ("weight", "bias"))
REVERSED = [name for part in ("weight", "bias") for name in LAYERS[::-1] if part in name]


def equal_layers(root: Path, *, is_flat: bool, names: Sequence[str] = REVERSED) -> Path:
    """A run in fp16 without ZeRO, of layers that have the same shapes; its optimizer has them in
    two groups, in the order `names`. With `is_flat` it is FP16_Optimizer's, else that of
    FP16_UnfusedOptimizer."""
    import torch

    torch.manual_seed(3)
    masters = {n: torch.randn((5, 4) if "weight" in n else (5,)) for n in LAYERS}
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
    conversion = prepare(source, tmp_path / "out", "deepspeed", {"stage": 2, **options})
    assert isinstance(conversion, Conversion)
    perform(conversion, budget=MemoryBudget(), overwrite=False)
    found = formats.read(tmp_path / "out")
    torch.manual_seed(3)
    for name in LAYERS:
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
    with pytest.raises(BadRequest, match=r"layers\.0\.weight to number 0 .* not cast to that"):
        prepare(source, tmp_path / "out", "dcp", {"order": str(order)})


@pytest.mark.torch
def test_a_flat_group_of_another_size_is_refused(tmp_path: Path) -> None:
    source = equal_layers(tmp_path / "run", is_flat=True)
    order = tmp_path / "order"
    order.write_text("\n".join(REVERSED[:2]) + "\n\n" + "\n".join(REVERSED[3:]))
    with pytest.raises(BadRequest, match=r"60 elements in group 0 .* have 40"):
        prepare(source, tmp_path / "out", "dcp", {"order": str(order)})
    order.write_text("\n".join(REVERSED))
    with pytest.raises(BadRequest, match=r"2 flat tensors.*--order has 1 group"):
        prepare(source, tmp_path / "out", "dcp", {"order": str(order)})


def test_weights_alone_say_that_the_optimizer_is_left_out(tmp_path: Path) -> None:
    conversion = planned(BF16, tmp_path / "out", "dcp", weights_only=True)
    assert {"exp_avg", "exp_avg_sq"} <= {dropped.what for dropped in conversion.target.dropped}
    assert not any("has no optimizer state, so" in note for note in conversion.notes)


def test_a_step_that_the_run_does_not_count_is_left_out(tmp_path: Path) -> None:
    conversion = convert(BF16, tmp_path / "out", "deepspeed", stage=3)
    assert ONE_STEP_LESS in conversion.notes
    found = formats.read(tmp_path / "out")
    assert not found.problems
    steps = {scalar.value for scalar in formats.training_of(found).scalars.values()}
    assert steps == {formats.training_of(found).steps}


def test_reshard_names_the_command_that_changes_the_stage(tmp_path: Path) -> None:
    with pytest.raises(Unsupported, match=r"use zerotools convert --to deepspeed --stage 1"):
        reshard.prepare(DEEPSPEED / BF16 / "checkpoint", tmp_path / "out", world_size=3)
