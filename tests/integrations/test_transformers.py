"""The callback under transformers' own Trainer, as jobs of a real daemon and under a fake one."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from harness.warm_interpreter import interpreter
from tests.daemon.daemons import Daemon, daemon_in
from tests.daemon.made_attempts import progress_of, wait_for_file
from zerotools.jobs.jobfile.parse import job_from_dict

PROGRAM = Path(__file__).with_name("trainer_program.py")
MODULES = ("transformers.models.llama.modeling_llama", "transformers.trainer")
SAVES = ('save_strategy="steps"', "save_steps=2", 'eval_strategy="steps"', "eval_steps=3")
ALL_STEPS = [1, 2, 3, 4, 5, 6]

pytestmark = pytest.mark.torch


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """An interpreter that has transformers imported."""
    path = tmp_path_factory.mktemp("warm") / "python"
    with interpreter(path, MODULES, ["train.py"]) as one:
        yield one


@pytest.fixture(scope="module")
def jobs(python: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Jobs]:
    """A daemon, and the directory of the program."""
    directory = tmp_path_factory.mktemp("jobs")
    with daemon_in(directory / "state") as daemon:
        yield Jobs(daemon.start(), directory, python)


class Jobs:
    """Runs the program as jobs, each in a directory of its own."""

    def __init__(self, daemon: Daemon, directory: Path, python: Path) -> None:
        self.daemon = daemon
        self._directory = directory
        self._python = python

    def submit(self, name: str, *words: str, ranks: int = 1, **changes: Any) -> int:
        """Submit one job; returns its number."""
        work = self._directory / name
        work.mkdir()
        shutil.copy(PROGRAM, work / "train.py")
        table: dict[str, Any] = {"command": ["train.py", *words], "directory": str(work)}
        job = {
            "engine": "script",
            "device": "cpu",
            "ranks": ranks,
            "python": str(self._python),
            "output_dir": str(work / "out"),
        }
        table |= changes.pop("script", {})
        spec = job_from_dict({**job, "script": table, **changes}, source="job")
        return int(self.daemon.client.submit(spec)["id"])

    def ended(self, job: int, state: str = "succeeded") -> dict[str, Any]:
        """The job at its end."""
        found = self.daemon.wait_for_end(job)
        log = (self.daemon.run_dir(job) / "rank-0.log").read_text()
        assert found["state"] == state, f"{found['reason']}\n{log}"
        assert "zerotools.worker: " not in log, log
        return found

    def work(self, name: str) -> Path:
        """The directory of the job's program."""
        return self._directory / name


def metrics(job: dict[str, Any]) -> list[dict[str, Any]]:
    lines = (Path(job["output_dir"]) / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def losses(job: dict[str, Any]) -> dict[int, float]:
    return {line["step"]: line["loss"] for line in metrics(job) if "loss" in line}


def checkpoints(run_dir: Path) -> list[tuple[int, str]]:
    events = [each for each in progress_of(run_dir) if each.get("event") == "checkpoint"]
    return [(each["step"], Path(each["path"]).name) for each in events]


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
    evaluated = {line["step"] for line in metrics(whole) if "eval_loss" in line}
    assert evaluated == {3, 6}
    run_dir = jobs.daemon.run_dir(whole["id"])
    assert checkpoints(run_dir) == [(2, "checkpoint-2"), (4, "checkpoint-4"), (6, "checkpoint-6")]


def test_a_stop_saves_first_and_a_resume_takes_the_same_steps(
    jobs: Jobs, whole: dict[str, Any]
) -> None:
    """Step 3 would be evaluated: the stop goes before that."""
    job = jobs.submit("stopped", *SAVES, "hold=3")
    wait_for_file(jobs.work("stopped") / "holding")
    jobs.daemon.client.cancel(job)
    stopped = jobs.ended(job, "cancelled")
    assert stopped["latest_checkpoint"]["step"] == 3
    assert stopped["reason"].endswith("saved at step 3 and stopped")
    assert stopped["evaluation"] is None
    resumed = jobs.ended(jobs.daemon.client.resume(job)["id"])
    assert (resumed["progress"]["step"], resumed["latest_checkpoint"]["step"]) == (6, 6)
    assert losses(resumed) == pytest.approx(losses(whole))
    assert [line["step"] for line in metrics(resumed) if "eval_loss" in line] == [6]


def test_ranks_stop_at_the_same_step_and_resume(jobs: Jobs) -> None:
    """Rank 0 hears of the stop after step 3, where rank 1 waits for its answer."""
    two = ("ask", 'ddp_backend="gloo"', "logging_steps=2")
    job = jobs.submit("ranks", *two, "hold=3", ranks=2)
    wait_for_file(jobs.work("ranks") / "holding")
    jobs.daemon.client.cancel(job)
    stopped = jobs.ended(job, "cancelled")
    assert stopped["latest_checkpoint"]["step"] == 3
    assert list(losses(stopped)) == [2, 3]
    resumed = jobs.ended(jobs.daemon.client.resume(job)["id"])
    assert list(losses(resumed)) == [2, 3, 4, 6]
    assert [line["step"] for line in metrics(resumed)] == ALL_STEPS
    assert resumed["progress"]["loss"] == losses(resumed)[6]


def test_a_checkpoint_is_reported_when_the_last_rank_has_written(jobs: Jobs) -> None:
    words = ("late", 'ddp_backend="gloo"', 'save_strategy="steps"', "save_steps=2", "max_steps=3")
    job = jobs.ended(jobs.submit("late", *words, ranks=2))
    events = [e for e in progress_of(jobs.daemon.run_dir(job["id"])) if e["event"] == "checkpoint"]
    assert [each["step"] for each in events] == [2, 3]
    for each in events:
        last = Path(each["path"]) / "rng_state_1.pth"
        assert last.stat().st_mtime < each["time"]


def test_a_callback_on_one_rank_alone_holds_up_nobody(jobs: Jobs) -> None:
    job = jobs.ended(jobs.submit("alone", "alone", 'ddp_backend="gloo"', ranks=2))
    assert job["progress"]["step"] == 6
    log = (jobs.daemon.run_dir(job["id"]) / "rank-0.log").read_text()
    assert "add the callback on every rank" in log


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


@pytest.mark.full
@pytest.mark.deepspeed
@pytest.mark.dear(60, "four ranks that import DeepSpeed, and two launchers")
def test_ranks_of_torchrun_under_deepspeed_stop_and_resume(
    jobs: Jobs, whole: dict[str, Any]
) -> None:
    """ZeRO-3; four sequences a step as in `whole`, by two ranks."""
    config = {
        "zero_optimization": {"stage": 3},
        "train_micro_batch_size_per_gpu": "auto",
        "gradient_clipping": "auto",
    }
    words = ("ask", f"deepspeed={json.dumps(config)}", "hold=3", "per_device_train_batch_size=1")
    script = {"launcher": "torchrun"}
    job = jobs.submit("zero", *words, ranks=2, script=script, python=sys.executable)
    wait_for_file(jobs.work("zero") / "holding")
    jobs.daemon.client.cancel(job)
    stopped = jobs.ended(job, "cancelled")
    assert stopped["latest_checkpoint"]["step"] == 3
    resumed = jobs.ended(jobs.daemon.client.resume(job)["id"])
    assert losses(resumed) == pytest.approx(losses(whole), rel=1e-3)


def test_without_transformers_it_says_what_to_install() -> None:
    code = "import sys; sys.modules['transformers'] = None; import zerotools.integrations.NAME"
    command = [sys.executable, "-c", code.replace("NAME", "transformers")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stderr.endswith(
        "ModuleNotFoundError: zerotools.integrations.transformers needs transformers: "
        "pip install transformers\n"
    )
