"""The callback under Lightning's own Trainer, in jobs of a real daemon."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integrations.script_jobs import Jobs, bare, documented, jobs_of, losses, metrics

PROGRAM = Path(__file__).with_name("lightning_program.py")

pytestmark = pytest.mark.torch


@pytest.fixture(scope="module")
def jobs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Jobs]:
    pytest.importorskip("lightning")
    with jobs_of(PROGRAM, ("lightning.pytorch",), tmp_path_factory.mktemp("jobs")) as found:
        yield found


def test_a_stop_saves_first_and_a_resume_takes_the_same_steps(jobs: Jobs) -> None:
    """Step 4 is the last of the first epoch and would be validated, and `min_epochs` asks for
    another."""
    whole = jobs.ended(jobs.submit("whole"))
    progress, evaluation = whole["progress"], whole["evaluation"]
    assert (progress["step"], progress["steps"], progress["lr"]) == (8, 8, 0.1)
    assert progress["train_error"] == pytest.approx(progress["loss"] ** 0.5)
    assert (evaluation["step"], evaluation["accuracy"]) == (8, 0.5)
    assert evaluation["loss"] > 0
    assert [each["step"] for each in jobs.checkpoints(whole)] == [2, 4, 6, 8]
    assert {line["step"] for line in metrics(whole) if "eval_loss" in line} == {4, 8}

    stopped = jobs.stopped("stopped", "hold=4")
    saved = jobs.checkpoints(stopped)
    assert [Path(each["path"]).name for each in saved] == ["step=2.ckpt", "stopped-step=4.ckpt"]
    assert stopped["evaluation"] is None
    assert "should_stop: True" in jobs.log(stopped)
    resumed = jobs.resumed(stopped)
    assert losses(resumed) == pytest.approx(losses(whole))
    assert resumed["latest_checkpoint"]["step"] == 8


# In ./scripts/test ranks agree on a stop under transformers (`test_transformers`).
@pytest.mark.full
def test_ranks_of_ddp_stop_at_the_same_step(jobs: Jobs) -> None:
    stopped = jobs.stopped("ddp", "ranks=2", "hold=3", ranks=2)
    assert stopped["latest_checkpoint"]["step"] == 3
    assert list(losses(stopped)) == [1, 2, 3]
    resumed = jobs.resumed(stopped)
    assert list(losses(resumed))[:5] == [1, 2, 3, 4, 5]


def test_batches_are_accumulated_and_the_loss_is_their_mean(jobs: Jobs) -> None:
    """Four batches are two steps."""
    words = ("accumulate_grad_batches=2", "max_epochs=1", "min_epochs=1", "log_every_n_steps=2")
    job = jobs.ended(jobs.submit("accumulated", *words))
    assert (job["progress"]["step"], job["progress"]["steps"]) == (2, 2)
    _, _, said = jobs.log(job).partition("batches: ")
    batches = json.loads(said.splitlines()[0])
    assert losses(job) == {2: pytest.approx(sum(batches) / 4)}
    assert [line["step"] for line in metrics(job) if "host_bytes" in line] == [1, 2]


def test_what_a_thread_writes_is_reported_when_it_is_there(jobs: Jobs) -> None:
    job = jobs.ended(jobs.submit("async", "async", "max_epochs=1", "min_epochs=1"))
    saved = jobs.checkpoints(job)
    assert [each["step"] for each in saved] == [2, 4]
    for each in saved:
        assert Path(each["path"]).stat().st_mtime <= each["time"]


BEFORE = """
import torch
from lightning.pytorch import Trainer
from lightning.pytorch.demos.boring_classes import BoringModel, RandomDataset
model = BoringModel()
loader = torch.utils.data.DataLoader(RandomDataset(32, 3))
"""


def test_the_lines_of_the_documents_are_enough(jobs: Jobs) -> None:
    program = BEFORE + documented("integrations.lightning")
    job = jobs.ended(jobs.submit("documented", program=program))
    assert (job["progress"]["step"], job["progress"]["steps"]) == (6, 6)
    assert job["latest_checkpoint"]["step"] == 6


OLD_NAME = """
import types
sys.modules["pytorch_lightning"] = types.ModuleType("pytorch_lightning")
callbacks = sys.modules["pytorch_lightning.callbacks"] = types.ModuleType("callbacks")
callbacks.Callback = type("Callback", (), {})
from zerotools.integrations.lightning import ZerotoolsCallback
print(ZerotoolsCallback.__base__ is callbacks.Callback)
"""


def test_a_program_that_uses_the_old_name_gets_a_callback_of_that() -> None:
    assert bare(OLD_NAME).stdout == "True\n"


def test_without_lightning_it_says_what_to_install() -> None:
    assert bare("import zerotools.integrations.lightning").stderr.endswith(
        "ModuleNotFoundError: zerotools.integrations.lightning needs Lightning: "
        "pip install lightning\n"
    )
