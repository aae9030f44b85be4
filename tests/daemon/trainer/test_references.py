"""DPO on real ranks: TRL's losses, at every number of ranks, and references that are kept."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.daemon.trainer.several import Runs, run_all
from zerotools.runs import checkpoint_dirs

pytestmark = [pytest.mark.torch, pytest.mark.dear(25, "three numbers of ranks")]
GOLDEN = Path(__file__).parents[2] / "golden" / "trl-1.16.0" / "dpo"
TRUTH = json.loads((GOLDEN / "truth.json").read_text())
CLOSE = 2e-5
"""Of losses and rewards: TRL sums in another order, and in later steps that adds up."""
STAGES_ON = {1: (0,), 2: (1, 2), 3: (3,)}
NAMES = {
    "chosen": "rewards/chosen",
    "rejected": "rewards/rejected",
    "right": "rewards/accuracies",
}


def dpo_job(stage: int, **changes: Any) -> dict[str, Any]:
    train = {
        "steps": TRUTH["steps"],
        "batch_size": TRUTH["batch_size"],
        "learning_rate": TRUTH["learning_rate"],
        "weight_decay": 0.1,
        **changes.pop("train", {}),
    }
    return {
        "seed": TRUTH["seed"],
        "model": {"path": str(GOLDEN / "model")},
        "data": {"text": [], "preferences": [str(GOLDEN / "preferences.jsonl")]},
        "dpo": {"beta": TRUTH["beta"]},
        "train": train,
        "zero": {"stage": stage},
        **changes,
    }


def tuned(**changes: Any) -> dict[str, Any]:
    """The job before: it learns what was chosen."""
    rows = {"examples": [str(GOLDEN / "preferences.jsonl")], "response_column": "chosen"}
    return {**dpo_job(0, **changes), "data": {"text": [], **rows}, "dpo": {}}


@pytest.fixture(scope="module")
def by_ranks(tmp_path_factory: pytest.TempPathFactory, text: Path) -> dict[int, Runs]:
    """On 1 rank, and on 2 and 3 that also go on from what there was before."""
    root = tmp_path_factory.mktemp("references")
    found: dict[int, Runs] = {}
    further: dict[str, dict[str, Any]] = {}
    for ranks, stages in STAGES_ON.items():
        directory = root / str(ranks)
        jobs = {f"stage-{stage}": dpo_job(stage, checkpoint={"every": 3}) for stage in stages}
        out = directory / "out" / f"stage-{stages[0]}" / "out"
        source = out / checkpoint_dirs.directory_name(3)
        jobs["elsewhere"] = dpo_job(stages[-1], resume_from=str(source))
        if ranks == 1:
            jobs["pieces"] = dpo_job(0, train={"micro_batch_size": 2}, eval={"fraction": 0.2})
            jobs["tuned"] = tuned(train={"steps": 3}, checkpoint={"every": 3})
        found[ranks] = run_all(directory, text, ranks, jobs | further)
        tuned_step = found[1].checkpoint("tuned", 3)
        further = {
            "moved": dpo_job(3, resume_from=str(found[ranks].checkpoint(f"stage-{stages[0]}", 3))),
            "after-tuning": dpo_job(1, resume_from=str(tuned_step)),
        }
    return found


@pytest.mark.parametrize("ranks", STAGES_ON)
def test_losses_and_rewards_are_those_of_trl(by_ranks: dict[int, Runs], ranks: int) -> None:
    runs, logged = by_ranks[ranks], TRUTH["logged"]
    for stage in STAGES_ON[ranks]:
        losses = [each["loss"] for each in logged]
        assert runs.losses(f"stage-{stage}") == pytest.approx(losses, rel=CLOSE, abs=CLOSE)
        norms = [each["grad_norm"] for each in logged]
        assert runs.of(f"stage-{stage}", "grad_norm") == pytest.approx(norms, rel=1e-4)
        rewards = runs.of(f"stage-{stage}", "rewards")
        for name, theirs in NAMES.items():
            wanted = pytest.approx([each[theirs] for each in logged], rel=1e-4, abs=1e-4)
            assert [each[name] for each in rewards] == wanted, name


def reference_of(runs: Runs, name: str) -> Path:
    [found] = (runs.directory / name / "out" / "reference").glob("*.f32")
    return found


def test_references_are_those_of_the_start_weights(by_ranks: dict[int, Runs]) -> None:
    import numpy as np
    import torch
    from transformers import AutoTokenizer, LlamaForCausalLM

    model = LlamaForCausalLM.from_pretrained(GOLDEN / "model").eval()
    tokenizer = AutoTokenizer.from_pretrained(GOLDEN / "model")
    wanted = []
    for line in (GOLDEN / "preferences.jsonl").read_text().splitlines():
        row = json.loads(line)
        for name in ("chosen", "rejected"):
            asked, said = tokenizer(row["prompt"])["input_ids"], tokenizer(row[name])["input_ids"]
            ids = torch.tensor([[*asked, *said, tokenizer.eos_token_id]])
            with torch.no_grad():
                each = model(ids).logits.log_softmax(-1)[0, len(asked) - 1 : -1]
            wanted.append(float(each.gather(1, ids[0, len(asked) :, None]).sum()))
    for ranks, runs in by_ranks.items():
        path = reference_of(runs, f"stage-{STAGES_ON[ranks][0]}")
        assert np.fromfile(path, "<f4") == pytest.approx(wanted, rel=1e-5)
    names = {reference_of(runs, f"stage-{STAGES_ON[n][0]}").name for n, runs in by_ranks.items()}
    assert len(names) == 1


def test_pieces_are_added_up_and_held_out_pairs_evaluated(by_ranks: dict[int, Runs]) -> None:
    assert len(by_ranks[1].losses("pieces")) == TRUTH["steps"]
    [evaluated] = by_ranks[1].report["pieces"]["evaluations"].values()
    assert (evaluated["sequences"], evaluated["tokens"]) == (4, 4)
    assert evaluated["rewards"]["chosen"] > evaluated["rewards"]["rejected"] + 0.3
    assert evaluated["rewards"]["right"] > 0.7
    assert 0 < evaluated["loss"] < 0.6


@pytest.mark.parametrize("ranks", STAGES_ON)
def test_a_run_that_goes_on_takes_the_references_along(
    by_ranks: dict[int, Runs], ranks: int
) -> None:
    runs, stages = by_ranks[ranks], STAGES_ON[ranks]
    begun, on = f"stage-{stages[0]}", runs.losses("elsewhere")
    assert on == pytest.approx(runs.losses(begun)[3:], rel=CLOSE, abs=CLOSE)
    if len(stages) == 1:
        assert runs.ended("elsewhere") == runs.ended(begun)
    kept = [reference_of(runs, name).read_bytes() for name in (begun, "elsewhere")]
    assert kept[0] == kept[1]


@pytest.mark.parametrize("ranks", [2, 3])
def test_it_goes_on_at_another_number_of_ranks(by_ranks: dict[int, Runs], ranks: int) -> None:
    wanted = [each["loss"] for each in TRUTH["logged"]][3:]
    assert by_ranks[ranks].losses("moved") == pytest.approx(wanted, rel=CLOSE, abs=CLOSE)


def test_the_reference_of_a_job_after_another_is_what_that_one_learned(
    by_ranks: dict[int, Runs],
) -> None:
    for runs in (by_ranks[2], by_ranks[3]):
        losses = runs.losses("after-tuning")
        assert losses[0] == pytest.approx(0.693147, rel=1e-5)
        assert losses == pytest.approx(by_ranks[2].losses("after-tuning"), rel=CLOSE, abs=CLOSE)
    before = reference_of(by_ranks[1], "stage-0")
    after = reference_of(by_ranks[2], "after-tuning")
    assert before.name.split("-")[0] == after.name.split("-")[0]
    assert before.name != after.name
