"""How a rank ends: a stop, a job that cannot run, a checkpoint that cannot be used."""

import re
from pathlib import Path

import pytest

from harness.launching import TINY_GPT2, TINY_LLAMA, job, run, start
from tests.daemon.trainer.interruptions.compared import measured
from zerotools.runs import find_job_checkpoints
from zerotoolsd.trainer.checkpoints.choose_checkpoints_to_keep import late_evaluations
from zerotoolsd.trainer.rank.rank_errors import EXIT_BAD_CHECKPOINT, EXIT_BAD_JOB, EXIT_STOPPED

pytestmark = pytest.mark.torch


def test_a_stop_saves_at_the_next_step_and_ends_all_ranks_alike(tmp_path: Path, text: Path) -> None:
    attempt = start(tmp_path, job(text, ranks=2, train={"steps": 100_000}))
    attempt.mailbox.wait_for("step")
    (tmp_path / "stop").write_text("cancel")
    assert attempt.finish() == [EXIT_STOPPED] * 2
    newest = find_job_checkpoints.newest_valid(tmp_path / "out")
    assert newest.record is not None
    assert newest.record.step == max(attempt.losses())
    assert attempt.datagrams[-1]["phase"] == "stopped"
    assert "on request (cancel)" in attempt.log()


@pytest.mark.parametrize("steps", [1, 2], ids=["of the last step", "of another"])
def test_a_stop_ends_an_evaluation_and_the_next_attempt_begins_with_it(
    tmp_path: Path, text: Path, steps: int
) -> None:
    (tmp_path / "long").write_text(text.read_text() * 200)

    def with_sequences(count: int | None) -> dict[str, object]:
        evaluated = {"files": [str(tmp_path / "long")], "every": 1, "max_sequences": count}
        wanted = {name: value for name, value in evaluated.items() if value is not None}
        best = {"best": "eval_loss"}
        return job(text, ranks=2, train={"steps": steps}, eval=wanted, checkpoint=best)

    attempt = start(tmp_path / "run", with_sequences(None))
    attempt.mailbox.wait_for("step")
    (tmp_path / "run" / "stop").write_text("cancel")
    assert attempt.finish() == [EXIT_STOPPED] * 2
    assert attempt.events("eval") == []
    saved = find_job_checkpoints.read_record(
        tmp_path / "run/out" / find_job_checkpoints.directory_name(1)
    )
    assert saved.measured.keys() == {"loss"}
    assert not (tmp_path / "run/out/best").exists()
    (tmp_path / "run" / "stop").unlink()
    again = run(tmp_path / "run", with_sequences(3))
    assert [event["step"] for event in again.events("eval")] == [1, 2][:steps]
    assert sorted(again.losses()) == [2][: steps - 1]
    whole = run(tmp_path / "whole", with_sequences(3))
    assert measured(tmp_path / "run/out") == measured(whole.run_dir / "out")
    # The first checkpoint is compared by the evaluation that came after it.
    first = find_job_checkpoints.directory_name(1)
    losses = {event["step"]: event["loss"] for event in again.events("eval")}
    assert late_evaluations(tmp_path / "run/out") == {first: losses[1]}
    best = find_job_checkpoints.directory_name(min(losses, key=losses.__getitem__))
    assert (tmp_path / "run/out/best").read_text().strip() == best


def test_a_stop_before_the_first_step_is_a_clean_stop(tmp_path: Path, text: Path) -> None:
    (tmp_path / "stop").write_text("cancel")
    attempt = run(tmp_path, job(text), expect=EXIT_STOPPED)
    assert attempt.losses() == {}
    assert find_job_checkpoints.list_checkpoints(tmp_path / "out") == []


def test_text_that_is_not_utf8_ends_every_rank_with_one_sentence(tmp_path: Path) -> None:
    path = tmp_path / "latin.txt"
    path.write_bytes(b"abc" * 100 + b"\xe9t\xe9" * 100)
    attempt = run(tmp_path, job(path, ranks=2), expect=EXIT_BAD_JOB)
    error = next(event for event in attempt.events("error") if event["rank"] == 0)
    assert error["kind"] == "bad_job"
    assert f"{path}, line 1: is not UTF-8: byte 300 of the file is 0xe9" in error["message"]
    assert "Traceback" not in attempt.log()
    assert find_job_checkpoints.list_checkpoints(tmp_path / "out") == []


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"model": {"config": {**TINY_LLAMA, "vocab_size": 100}}}, "256 token ids, .* 100"),
        (
            {"model": {"config": {"model_type": "lama"}}},
            "transformers does not know model_type 'lama'",
        ),
        (
            {"model": {"config": {"model_type": "llama", "hiden_size": 32}}},
            "unknown key 'hiden_size': did you mean 'hidden_size'",
        ),
        (
            {"train": {"learning_rate": 1e38}},
            "is (nan|inf): training has diverged; lower .*; no checkpoint was saved",
        ),
    ],
)
def test_a_job_that_cannot_run_says_why(
    tmp_path: Path, text: Path, changes: dict[str, object], sentence: str
) -> None:
    attempt = run(tmp_path, job(text, **changes), expect=EXIT_BAD_JOB)
    [error] = attempt.events("error")
    assert re.search(sentence, error["message"]), error["message"]


def test_a_checkpoint_of_another_model_or_a_damaged_one_is_refused(
    tmp_path: Path, text: Path
) -> None:
    made = run(tmp_path / "made", job(text, train={"steps": 1}))
    directory = made.run_dir / "out" / find_job_checkpoints.directory_name(1)
    other = {**job(text, model={"config": TINY_GPT2}), "resume_from": str(directory)}
    attempt = run(tmp_path / "other", other, expect=EXIT_BAD_JOB)
    assert "it is a checkpoint of another model" in attempt.events("error")[0]["message"]
    (directory / "config.json").write_text("{}")
    damaged = {**job(text), "resume_from": str(directory)}
    attempt = run(tmp_path / "damaged", damaged, expect=EXIT_BAD_CHECKPOINT)
    assert "config.json has 2 bytes" in attempt.events("error")[0]["message"]
