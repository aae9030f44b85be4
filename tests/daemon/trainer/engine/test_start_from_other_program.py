"""A job, its model and a checkpoint of another program, before anything is loaded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.torch
pytest.importorskip("torch")

from harness.launching import job  # noqa: E402
from tests.golden_files import FOREIGN, GOLDEN  # noqa: E402
from zerotools.core.errors import BadRequest  # noqa: E402
from zerotools.jobs.jobfile.parse import job_from_dict  # noqa: E402
from zerotoolsd.trainer.engine.start_from_other_program import ForeignStart, make_foreign_start  # noqa: E402
from zerotoolsd.trainer.model.meta_model import make_meta_model, read_config  # noqa: E402

CASES = sorted(path.name for path in FOREIGN.iterdir())


def start(case: str, *, model: dict[str, Any] | None = None, **changes: Any) -> ForeignStart:
    config = json.loads((FOREIGN / case / "continued.json").read_text())["config"]
    tree = job(GOLDEN / "README.md", model={"config": {**config, **(model or {})}}, **changes)
    tree["train"]["steps"] = changes.get("train", {}).get("steps", 9)
    checkpoint = FOREIGN / case / "checkpoint"
    tree = {"resume_from": str(checkpoint), "resume_order": "model", **tree}
    spec = job_from_dict(tree, source="job")
    return make_foreign_start(checkpoint, spec, make_meta_model(read_config(spec.model), spec.lora))


@pytest.mark.parametrize("case", CASES)
def test_every_parameter_gets_its_state_by_the_models_names(case: str) -> None:
    found = start(case)
    names = {name for group in found.record.optimizer.groups for name in group.params}
    assert {"model.norm.weight", "model.layers.1.self_attn.q_proj.weight"} <= names
    assert found.state.fresh == ()
    assert found.updates_of("model.norm.weight") in (3.0, 4.0)
    assert (found.record.step, found.record.consumed_sequences) == (3, 0)
    assert found.record.made_from
    decays = [g.weight_decay for g in found.record.optimizer.groups if "lm_head" in str(g.params)]
    assert decays in ([0.1], [])
    assert sum("it does not record the order of the data" in n for n in found.notes) == 1


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"model": {"num_hidden_layers": 1}}, "it has model.layers.1"),
        ({"model": {"num_hidden_layers": 3}}, "it lacks model.layers.2"),
        (
            {"model": {"intermediate_size": 16}},
            r"model.layers.0.mlp.gate_proj.weight has shape \[12, 8\] there, but shape \[16, 8\]",
        ),
        ({"train": {"optimizer": "sgd"}}, 'was trained with adamw; set train.optimizer = "adamw"'),
        ({"train": {"steps": 3}}, "train.steps = 3: .* is already at step 3; set a number above 3"),
        ({"lora": {"rank": 2}}, "its adapters cannot be used: remove \\[lora\\]"),
    ],
)
@pytest.mark.parametrize("case", ["deepspeed-z3", "fsdp2-accelerate", "hf-trainer", "deepspeed-z0"])
def test_what_the_job_cannot_go_on_from_is_refused(
    case: str, changes: dict[str, Any], said: str
) -> None:
    with pytest.raises(BadRequest, match=said):
        start(case, **changes)


@pytest.mark.parametrize("case", ["hf-trainer", "hf-trainer-experts"])
def test_layers_of_two_groups_are_in_no_order_that_is_known(case: str) -> None:
    with pytest.raises(
        BadRequest,
        match=r'has numbers instead of weight names .*, set resume_order = "model"',
    ):
        start(case, resume_order=None)


def test_masters_are_believed_and_an_order_is_checked_against_them(tmp_path: Path) -> None:
    case, file = "deepspeed-z0-bf16", tmp_path / "order"
    found = start(case)
    assert any(
        "resume_order = model is ignored: the optimizer state has numbers" in n for n in found.notes
    )
    groups = ["\n".join(group.params) for group in found.run.training.groups]
    file.write_text("\n\n".join(groups))
    ordered = start(case, resume_order=str(file))
    assert ordered.run.training.groups == found.run.training.groups
    assert not any("is ignored" in note for note in ordered.notes)
    swapped = (group.replace("layers.0", "l").replace("layers.1", "layers.0") for group in groups)
    file.write_text("\n\n".join(swapped).replace(".l.", ".layers.1."))
    said = r"resume_order gives the name \S+ to number .* is not equal to that weight, but to "
    with pytest.raises(BadRequest, match=said):
        start(case, resume_order=str(file))


def test_an_order_of_parameters_that_have_names_is_said_to_be_of_no_use() -> None:
    said = "resume_order = model is ignored: the checkpoint has the names of the optimizer's"
    assert any(said in note for note in start("deepspeed-z2").notes)
    assert not any("ignored" in note for note in start("deepspeed-z2", resume_order=None).notes)


def test_both_shapes_are_named_where_the_checkpoint_has_the_names_of_the_hub() -> None:
    said = r"lm_head.weight has shape \[37, 8\], but the model's config needs \[74, 8\]: it is a ch"
    with pytest.raises(BadRequest, match=said):
        start("hf-trainer-experts", model={"vocab_size": 74})
