"""The callback under transformers' own Trainer, in jobs of a real daemon."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integrations.script_jobs import Jobs, bare, documented, jobs_of, losses, metrics

PROGRAM = Path(__file__).with_name("trainer_program.py")
MODULES = ("transformers.models.llama.modeling_llama", "transformers.trainer")
SAVES = ('save_strategy="steps"', "save_steps=2", 'eval_strategy="steps"', "eval_steps=3")
ALL_STEPS = [1, 2, 3, 4, 5, 6]

pytestmark = pytest.mark.torch


@pytest.fixture(scope="module")
def jobs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Jobs]:
    with jobs_of(PROGRAM, MODULES, tmp_path_factory.mktemp("jobs")) as found:
        yield found


@pytest.fixture(scope="module")
def whole(jobs: Jobs) -> dict[str, Any]:
    """A job that trains to its end, with an evaluation after steps 3 and 6."""
    return jobs.ended(jobs.submit("whole", *SAVES, 'include_num_input_tokens_seen="all"'))


def test_steps_evaluations_and_checkpoints_are_shown(jobs: Jobs, whole: dict[str, Any]) -> None:
    progress, evaluation = whole["progress"], whole["evaluation"]
    assert (progress["step"], progress["steps"], progress["epoch"]) == (6, 6, 0.375)
    assert progress.keys() >= {"loss", "grad_norm", "lr", "tokens_per_second", "seconds_left"}
    assert progress["tokens"] == 16
    assert (evaluation["step"], evaluation["phase"]) == (6, "eval")
    assert evaluation.keys() >= {"loss", "seconds"}
    assert list(losses(whole)) == ALL_STEPS
    assert {line["step"] for line in metrics(whole) if "eval_loss" in line} == {3, 6}
    saved = [(each["step"], Path(each["path"]).name) for each in jobs.checkpoints(whole)]
    assert saved == [(2, "checkpoint-2"), (4, "checkpoint-4"), (6, "checkpoint-6")]


def test_a_stop_saves_first_and_a_resume_takes_the_same_steps(
    jobs: Jobs, whole: dict[str, Any]
) -> None:
    """Step 3 would be evaluated, and saved only if the evaluation is the best: the stop does not
    wait for that."""
    best = ('save_strategy="best"', 'metric_for_best_model="loss"', "greater_is_better=false")
    stopped = jobs.stopped("stopped", *best, *SAVES[2:], "hold=3")
    assert stopped["latest_checkpoint"]["step"] == 3
    assert stopped["reason"].endswith("saved at step 3 and stopped")
    assert stopped["evaluation"] is None
    resumed = jobs.resumed(stopped)
    assert (resumed["progress"]["step"], resumed["latest_checkpoint"]["step"]) == (6, 6)
    assert losses(resumed) == pytest.approx(losses(whole))
    assert [line["step"] for line in metrics(resumed) if "eval_loss" in line] == [6]


def test_ranks_stop_at_the_same_step_and_resume(jobs: Jobs) -> None:
    """Rank 0 hears of the stop after step 3, where rank 1 waits for its answer."""
    words = ("ask", 'ddp_backend="gloo"', "logging_steps=2", "hold=3")
    stopped = jobs.stopped("ranks", *words, ranks=2)
    assert stopped["latest_checkpoint"]["step"] == 3
    assert list(losses(stopped)) == [2, 3]
    resumed = jobs.resumed(stopped)
    assert list(losses(resumed)) == [2, 3, 4, 6]
    assert [line["step"] for line in metrics(resumed)] == ALL_STEPS
    assert resumed["progress"]["loss"] == losses(resumed)[6]


def test_a_checkpoint_is_reported_when_the_last_rank_has_written(jobs: Jobs) -> None:
    words = ("late", 'ddp_backend="gloo"', 'save_strategy="steps"', "save_steps=2", "max_steps=3")
    job = jobs.ended(jobs.submit("late", *words, ranks=2))
    saved = jobs.checkpoints(job)
    assert [each["step"] for each in saved] == [2, 3]
    for each in saved:
        assert (Path(each["path"]) / "rng_state_1.pth").stat().st_mtime < each["time"]


def test_a_callback_on_one_rank_alone_holds_up_nobody(jobs: Jobs) -> None:
    job = jobs.ended(jobs.submit("alone", "alone", 'ddp_backend="gloo"', ranks=2))
    assert job["progress"]["step"] == 6
    assert "add the callback on every rank" in jobs.log(job)


def test_epochs_accumulation_and_a_subclass_that_logs_more(jobs: Jobs) -> None:
    """As TRL's trainers do: 32 examples are 8 steps of 2 batches of 2; the last loss is that of
    step 6, as is shown at step 8."""
    words = ("trl", "max_steps=-1", "num_train_epochs=1", "gradient_accumulation_steps=2")
    epoch = ('eval_strategy="epoch"', 'save_strategy="epoch"', "logging_steps=3")
    job = jobs.ended(jobs.submit("epochs", *words, *epoch))
    progress = job["progress"]
    assert (progress["step"], progress["steps"]) == (8, 8)
    assert progress["loss"] == progress["last_loss"] == losses(job)[6]
    logged = [line for line in metrics(job) if "loss" in line]
    assert [(line["step"], line["reward_margin"]) for line in logged] == [(3, 0.5), (6, 0.5)]
    assert logged[1]["tokens"] == 64
    assert job["evaluation"]["step"] == 8
    assert job["latest_checkpoint"]["step"] == 8


BEFORE = """
import sys
import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments
sizes = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "head_dim": 4}
model = LlamaForCausalLM(LlamaConfig(vocab_size=8, num_attention_heads=2, **sizes))
args = TrainingArguments("output", use_cpu=True, report_to=[], max_steps=2, logging_steps=1)
data = [{"input_ids": torch.arange(4), "labels": torch.arange(4)}] * 4
"""


def test_the_lines_of_the_documents_are_enough(jobs: Jobs) -> None:
    program = BEFORE + documented("integrations.transformers", "sys.exit()")
    job = jobs.ended(jobs.submit("documented", program=program))
    assert list(losses(job)) == [1, 2]
    assert job["latest_checkpoint"]["step"] == 2


@pytest.mark.full
@pytest.mark.deepspeed
@pytest.mark.dear(60, "four ranks that import DeepSpeed, and two launchers")
def test_ranks_of_torchrun_under_deepspeed_stop_and_resume(
    jobs: Jobs, whole: dict[str, Any]
) -> None:
    """ZeRO-3; two sequences a step as in `whole`, by two ranks."""
    config = {
        "zero_optimization": {"stage": 3},
        "train_micro_batch_size_per_gpu": "auto",
        "gradient_clipping": "auto",
    }
    words = ("ask", f"deepspeed={json.dumps(config)}", "hold=3", "per_device_train_batch_size=1")
    script = {"launcher": "torchrun"}
    stopped = jobs.stopped("zero", *words, ranks=2, script=script, python=sys.executable)
    assert stopped["latest_checkpoint"]["step"] == 3
    assert losses(jobs.resumed(stopped)) == pytest.approx(losses(whole), rel=1e-3)


def test_without_transformers_it_says_what_to_install() -> None:
    assert bare("import zerotools.integrations.transformers").stderr.endswith(
        "ModuleNotFoundError: zerotools.integrations.transformers needs transformers: "
        "pip install transformers\n"
    )
