"""Names of wrapped models and of tied weights become the job's."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.ops.resume_from_other_program.made import ADAM, SHAPES, made, tensor
from zerotools.core.checkpoint import Key
from zerotools.core.errors import BadRequest
from zerotools.core.training_state import ParamGroup
from zerotools.ops.resume_from_other_program.foreign_run import ForeignRun
from zerotools.ops.resume_from_other_program.rename_to_job import WantedModel, with_job_names

WANTED = WantedModel(SHAPES, {}, {})


@pytest.mark.parametrize("prefix", ["", "module.", "_orig_mod.", "model.inner."])
def test_what_wraps_a_model_is_taken_off_its_names(prefix: str) -> None:
    run = made({prefix + name: shape for name, shape in SHAPES.items()})
    run = replace(run, numbers={Key(f"{prefix}norm.weight", "step"): 5})
    named = with_job_names(run, WANTED)
    assert {key.name for key in named.checkpoint.tensors} == set(SHAPES)
    assert named.training.groups[0].params == tuple(SHAPES)
    assert named.numbers == {Key("norm.weight", "step"): 5}


def test_a_prefix_that_not_all_names_have_is_none() -> None:
    run = made({"module.embed.weight": (8, 4), "norm.weight": (4,), "head.weight": (8, 4)})
    assert Key("module.embed.weight", "param") in with_job_names(run, WANTED).checkpoint.tensors


def test_a_tied_weight_is_found_under_its_other_name() -> None:
    stored = {"head.weight": (8, 4), "norm.weight": (4,)}
    wanted = WantedModel(
        {"embed.weight": (8, 4), "norm.weight": (4,)}, {}, {"head.weight": "embed.weight"}
    )
    named = with_job_names(made(stored), wanted)
    assert Key("embed.weight", "exp_avg") in named.checkpoint.tensors
    run = made({"tied": (8, 4), "norm.weight": (4,)})
    run = replace(run, checkpoint=replace(run.checkpoint, aliases={"embed.weight": "tied"}))
    assert Key("embed.weight", "param") in with_job_names(run, wanted).checkpoint.tensors


LAYERS = {
    name: shape
    for n in range(2)
    for name, shape in ((f"layers.{n}.weight", (4, 4)), (f"layers.{n}.bias", (4,)))
}
DECAYED = [name for name in LAYERS if name.endswith("weight")]
OF_LAYERS = WantedModel(LAYERS, {}, {}, DECAYED)


def numbered(*groups: list[tuple[int, ...]]) -> ForeignRun:
    """The weights of LAYERS, with state by number: the shapes of each group's parameters."""
    shapes = [shape for group in groups for shape in group]
    members = [f"optimizer.state.{n}" for n in range(len(shapes))]
    left = iter(members)
    rates = (0.1, 0.0)
    run = made(
        LAYERS,
        trained=(),
        unnamed={member: n for n, member in enumerate(members)},
        groups=tuple(
            ParamGroup(tuple(next(left) for _ in group), {**ADAM, "weight_decay": rate})
            for group, rate in zip(groups, rates, strict=False)
        ),
    )
    state = {
        Key(member, role): tensor(shape)
        for member, shape in zip(members, shapes, strict=True)
        for role in ("exp_avg", "exp_avg_sq")
    }
    checkpoint = replace(run.checkpoint, tensors={**run.checkpoint.tensors, **state})
    return replace(run, checkpoint=checkpoint)


def named(run: ForeignRun, order: str | None = None) -> list[tuple[str, ...]]:
    found = with_job_names(run, OF_LAYERS, order=order)
    assert not found.training.unnamed
    return [group.params for group in found.training.groups]


# Two groups of layers of one shape: the optimizer may have had the layers in any order.
TWO_GROUPS = numbered([(4, 4), (4, 4)], [(4,), (4,)])
BIASES = tuple(name for name in LAYERS if name not in DECAYED)


@pytest.mark.parametrize("run", [TWO_GROUPS, numbered([*LAYERS.values()])], ids=["two", "one"])
def test_numbers_of_equal_shapes_need_an_order(run: ForeignRun) -> None:
    said = r'no file has the names.* set resume_order = "model". Otherwise set resume_order to'
    with pytest.raises(BadRequest, match=said):
        with_job_names(run, OF_LAYERS)
    # Weights can be compared before.
    assert with_job_names(run, OF_LAYERS, by_number=False).training.unnamed


def test_an_order_names_the_numbers(tmp_path: Path) -> None:
    assert named(TWO_GROUPS, "model") == [tuple(DECAYED), BIASES]
    backwards = [DECAYED[::-1], [*BIASES][::-1]]
    file = tmp_path / "order"
    file.write_text("\n\n".join("\n".join(group) for group in backwards))
    assert named(TWO_GROUPS, str(file)) == [tuple(group) for group in backwards]
    file.write_text("layers.7.weight")
    with pytest.raises(BadRequest, match=r"order: layers\.7\.weight is not a parameter that the"):
        named(TWO_GROUPS, str(file))
    with pytest.raises(BadRequest, match="cannot be read"):
        named(TWO_GROUPS, str(tmp_path / "none"))
    three = numbered([(4, 4), (4, 4)], [(4,)])
    with pytest.raises(BadRequest, match=r'3 parameters .*set resume_order = "FILE" with the'):
        named(three, "model")


def test_shapes_that_fit_one_parameter_alone_are_names() -> None:
    run = numbered([(4, 4), (4, 4)], [(4,), (4,)])
    wanted = WantedModel({"a": (4, 4), "b": (4,)}, {}, {})
    few = replace(
        run,
        training=replace(
            run.training,
            unnamed={"optimizer.state.0": 0, "optimizer.state.2": 2},
            groups=(ParamGroup(("optimizer.state.2", "optimizer.state.0"), ADAM),),
        ),
    )
    assert with_job_names(few, wanted).training.groups[0].params == ("b", "a")
