"""What a Megatron checkpoint says of its run."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.formats.megatron.golden import read_case, run_of
from zerotools.core.checkpoint import Key, Opaque
from zerotools.core.errors import BadRequest
from zerotools.formats import training_of
from zerotools.formats.megatron.training_state import fitting_groups
from zerotools.io.files.regular_files import read_regular
from zerotools.ops.conversions import convert
from zerotools.ops.conversions.conversion import Conversion

EXPERTS = "megatron-core-0.16.1/moe-ep2-tp2"
PLAIN = "megatron-core-0.16.1/tied-pp2-plain"


@pytest.mark.parametrize("case", [EXPERTS, PLAIN, "megatron-core-0.12.3/dense-tp2-model-space"])
def test_groups_steps_and_counters(case: str) -> None:
    checkpoint = read_case(case)
    training = training_of(checkpoint)
    trained = {key.name for key in checkpoint.tensors if key.role == "exp_avg"}
    assert sorted(n for group in training.groups for n in group.params) == sorted(trained)
    for group in training.groups:
        shapes = {len(checkpoint.tensors[Key(name, "param")].shape) for name in group.params}
        assert shapes == ({1} if group.options["wd_mult"] == 0 else {2})
        assert (group.options["lr"], group.options["betas"]) == (0.01, (0.9, 0.999))
    assert {key.name for key in training.scalars} == trained
    assert {step.value for step in training.scalars.values()} == {2.0}
    assert (training.optimizer, training.steps, training.samples) == ("AdamW", 10, 80)
    assert training.lr_scheduler["lr_decay_style"] == "constant"
    assert str(training.precision) == "bfloat16"


def test_experts_have_a_group_of_their_own() -> None:
    training = training_of(read_case(EXPERTS))
    (experts,) = (g for g in training.groups if g.options["is_expert_parallel"])
    assert all(".local_experts." in name for name in experts.params)
    assert len(experts.params) == 16


def test_the_arguments_are_plain_and_classes_are_never_imported() -> None:
    args = training_of(read_case(EXPERTS)).client["args"]
    assert (args["num_layers"], args["num_experts"], args["swiglu"]) == (2, 4, True)
    backend = args["attention_backend"]
    assert isinstance(backend, Opaque)
    assert backend.name == "AttnBackend"


def test_a_parameter_that_fits_several_groups_has_none() -> None:
    groups = [{"wd_mult": 1.0}, {"wd_mult": 1.0}, {"wd_mult": 0.0}]
    assert list(fitting_groups("a.weight", (2, 2), groups, {})) == [0, 1]
    assert list(fitting_groups("a.weight", (2,), groups, {})) == [2]
    apart = {"apply_wd_to_qk_layernorm": True}
    assert list(fitting_groups("a.q_layernorm.weight", (2,), groups, apart)) == [0, 1]


def test_convert_asks_for_what_is_not_known(tmp_path: Path) -> None:
    """Without common.pt there are no param groups."""
    import shutil

    run = Path(shutil.copytree(run_of(PLAIN), tmp_path / "run"))
    common = run / "iter_0000010" / "common.pt"
    common.write_bytes(read_regular(common, 2**20)[:100])
    with pytest.raises(BadRequest, match=r"give lr, betas, eps, weight_decay"):
        convert.prepare_convert(run, tmp_path / "out", "dcp", {})
    given = {"lr": 0.1, "betas": (0.9, 0.95), "eps": 1e-8, "weight_decay": 0.0}
    done = convert.prepare_convert(run, tmp_path / "out", "dcp", given)
    assert isinstance(done, Conversion)
