"""Names of wrapped models and of tied weights become the job's."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.ops.foreign.made import SHAPES, made
from zerotools.core.checkpoint import Key
from zerotools.ops.foreign.names import WantedModel, with_job_names

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
