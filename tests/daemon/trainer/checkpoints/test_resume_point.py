"""A run goes on where it stopped: bit for bit at one world size, on the same curve at others."""

import errno
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harness.launching import TINY_GPT2, Attempt, job, run, start
from zerotools.core.errors import ZerotoolsError
from zerotools.jobs.jobfile_tables.spec import JobSpec
from zerotools.runs import find_job_checkpoints
from zerotoolsd.trainer.rank.rank_errors import (
    BadCheckpoint,
    CheckpointGone,
    MachineNotReady,
    error_word,
    exit_code,
)

pytestmark = pytest.mark.torch
FAULTY = Path(__file__).parents[1] / "rank_faulty.py"
TOLERANCE = 2e-6


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, text: Path) -> Attempt:
    """Two ranks, stage 3, four steps, a checkpoint after the second; no dropout."""
    return run(tmp_path_factory.mktemp("whole"), job(text, ranks=2, checkpoint={"every": 2}))


def checkpoint(attempt: Attempt, step: int) -> Path:
    return attempt.run_dir / "out" / find_job_checkpoints.directory_name(step)


def test_a_checkpoint_is_complete_and_described(whole: Attempt) -> None:
    assert [event["step"] for event in whole.events("checkpoint")] == [2, 4]
    record = find_job_checkpoints.verify_checkpoint_files(checkpoint(whole, 2))
    assert (record.step, record.world_size, record.stage) == (2, 2, 3)
    assert record.consumed_sequences == 2 * 12
    assert (checkpoint(whole, 2) / "config.json").is_file()
    assert find_job_checkpoints.latest_by_hint(whole.run_dir / "out") == checkpoint(whole, 4)
    assert all(name.endswith(".step") for name in record.replicated)


# A run with dropout that resumes is in `test_async`; that its random numbers go on is said below.
@pytest.mark.full
def test_the_same_world_size_continues_bit_for_bit(tmp_path: Path, text: Path) -> None:
    from tests.daemon.trainer.tensors import digest

    # GPT-2 drops out, so this also needs each rank's random numbers to go on.
    tree = job(text, ranks=2, model={"config": TINY_GPT2}, checkpoint={"every": 2})
    uninterrupted = run(tmp_path / "whole", tree)
    source = checkpoint(uninterrupted, 2)
    resumed = run(tmp_path / "resumed", {**tree, "resume_from": str(source)})
    event = resumed.events("resumed")[0]
    assert (event["step"], event["saved_world_size"], event["rng"]) == (2, 2, "restored")
    assert resumed.losses() == {step: uninterrupted.losses()[step] for step in (3, 4)}
    assert digest(checkpoint(resumed, 4)) == digest(checkpoint(uninterrupted, 4))
    assert find_job_checkpoints.read_record(checkpoint(resumed, 4)).aliases == {
        "lm_head.weight": "transformer.wte.weight"
    }


def test_another_world_size_and_stage_continue_the_curve(
    whole: Attempt, tmp_path: Path, text: Path
) -> None:
    """Others are in `engine_torch/test_stages`."""
    tree = job(text, ranks=1, zero={"stage": 0}, checkpoint={"keep_last": 1})
    attempt = run(tmp_path, {**tree, "resume_from": str(checkpoint(whole, 2))})
    wanted = {step: pytest.approx(whole.losses()[step], rel=TOLERANCE) for step in (3, 4)}
    assert attempt.losses() == wanted
    assert attempt.events("resumed")[0]["rng"] == "reseeded"
    assert checkpoint(whole, 2).is_dir()


def test_a_damaged_newest_checkpoint_is_skipped_and_named(
    whole: Attempt, tmp_path: Path, text: Path
) -> None:
    output_dir = tmp_path / "out"
    shutil.copytree(whole.run_dir / "out", output_dir)
    damaged = output_dir / find_job_checkpoints.directory_name(4)
    shard = next((damaged / find_job_checkpoints.DCP).glob("*.distcp"))
    data = bytearray(shard.read_bytes())
    data[len(data) // 2] ^= 1
    shard.write_bytes(data)
    tree = job(text, train={"steps": 5}, checkpoint={"every": 1, "keep_last": 2})
    attempt = run(tmp_path, tree)
    skipped = attempt.events("skipped_checkpoint")
    assert [event["path"] for event in skipped] == [str(damaged)]
    assert shard.name in skipped[0]["why"]
    assert attempt.events("resumed")[0]["step"] == 2
    assert attempt.events("resumed")[0]["verified"] == find_job_checkpoints.DIGESTS
    assert {event["verified"] for event in attempt.events("checkpoint")} == {"at_save"}
    assert [
        find_job_checkpoints.step_of(path.name)
        for path in find_job_checkpoints.list_checkpoints(output_dir)
    ] == [
        5,
        4,
    ]
    find_job_checkpoints.verify_checkpoint_files(damaged)  # written anew


def test_a_rank_killed_while_it_saves_leaves_the_older_checkpoint(
    tmp_path: Path, text: Path
) -> None:
    from tests.daemon.trainer.tensors import digest

    tree = job(text, ranks=2, checkpoint={"every": 2})
    output_dir = tmp_path / "out"
    (tmp_path / "fault").write_text("kill")
    killed = start(tmp_path, tree, script=FAULTY)
    statuses = killed.finish()
    assert statuses[0] == -signal.SIGKILL
    assert statuses[1] not in (0, 64, 65, 75)
    assert [path.name for path in find_job_checkpoints.list_checkpoints(output_dir)] == [
        find_job_checkpoints.directory_name(2)
    ]
    assert len(list(output_dir.glob(f"{find_job_checkpoints.STAGING_PREFIX}*"))) == 1
    before = digest(output_dir / find_job_checkpoints.directory_name(2))
    attempt = run(tmp_path, tree)
    assert attempt.events("resumed")[0]["step"] == 2
    assert attempt.events("resumed")[0]["verified"] == find_job_checkpoints.UNCHANGED
    assert attempt.events("resumed")[0]["rng"] == "restored"
    assert digest(output_dir / find_job_checkpoints.directory_name(2)) == before
    assert list(output_dir.glob(f"{find_job_checkpoints.STAGING_PREFIX}*")) == []
    find_job_checkpoints.verify_checkpoint_files(
        output_dir / find_job_checkpoints.directory_name(4)
    )


def test_a_full_disk_costs_a_checkpoint_and_not_the_run(tmp_path: Path, text: Path) -> None:
    (tmp_path / "fault").write_text("full disk")
    attempt = start(tmp_path, job(text, ranks=2, checkpoint={"every": 2}), script=FAULTY)
    assert attempt.finish() == [0, 0], attempt.log()
    assert [event["step"] for event in attempt.events("save_failed")] == [2]
    assert "No space left on device" in attempt.events("save_failed")[0]["why"]
    assert [
        find_job_checkpoints.step_of(path.name)
        for path in find_job_checkpoints.list_checkpoints(tmp_path / "out")
    ] == [4]
    assert list((tmp_path / "out").glob(f"{find_job_checkpoints.STAGING_PREFIX}*")) == []


def test_a_hint_that_cannot_be_written_costs_no_checkpoint(tmp_path: Path, text: Path) -> None:
    (tmp_path / "out" / find_job_checkpoints.LATEST).mkdir(parents=True)
    attempt = run(tmp_path, job(text, checkpoint={"every": 2, "keep_last": 1}))
    assert [event["step"] for event in attempt.events("checkpoint")] == [2, 4]
    assert attempt.events("save_failed") == []
    assert "step 4 is complete, but a later task failed: " in attempt.log()
    find_job_checkpoints.verify_checkpoint_files(checkpoint(attempt, 4))


def test_what_the_job_names_through_a_link_is_kept(
    whole: Attempt, tmp_path: Path, text: Path
) -> None:
    kept = tmp_path / "out" / find_job_checkpoints.directory_name(2)
    shutil.copytree(checkpoint(whole, 2), kept)
    link = tmp_path / "out" / "best"
    link.symlink_to(kept)
    tree = job(text, train={"steps": 5}, checkpoint={"every": 1, "keep_last": 1})
    attempt = run(tmp_path, {**tree, "resume_from": str(link)})
    assert attempt.events("resumed")[0]["step"] == 2
    assert [
        find_job_checkpoints.step_of(path.name)
        for path in find_job_checkpoints.list_checkpoints(tmp_path / "out")
    ] == [5, 2]


class Alone:
    """A group of one rank."""

    def decided_by_rank_zero(self, decide: Callable[[], Any]) -> Any:
        return decide()


def choose(output_dir: Path, saved_step: int = 0, **more: Any) -> Any:
    from zerotoolsd.trainer.checkpoints.resume_point import choose_resume_point

    spec = JobSpec(output_dir=str(output_dir), **more)
    return choose_resume_point(spec, Alone(), saved_step)  # type: ignore[arg-type]


def spoil(checkpoint: Path) -> Path:
    shard = next((checkpoint / find_job_checkpoints.DCP).glob("*.distcp"))
    os.truncate(shard, shard.stat().st_size - 1)
    return shard


def test_bad_checkpoints_alone_stop_the_job_with_what_to_do(whole: Attempt, tmp_path: Path) -> None:
    output_dir = tmp_path / "out"
    shutil.copytree(whole.run_dir / "out", output_dir)
    names = [find_job_checkpoints.directory_name(step) for step in (2, 4)]
    shards = [spoil(output_dir / name) for name in names]
    with pytest.raises(BadCheckpoint) as refused:
        choose(output_dir, saved_step=4)
    message = str(refused.value)
    assert f"The newest: {shards[1]} has" in message
    assert "1 older one cannot be used either" in message
    assert "move the checkpoints out of" in message
    assert "step 0" in message
    assert error_word(refused.value) == "bad_checkpoint"
    assert sorted(path.name for path in find_job_checkpoints.list_checkpoints(output_dir)) == names


def test_what_was_saved_and_is_gone_is_not_begun_anew(whole: Attempt, tmp_path: Path) -> None:
    output_dir = tmp_path / "out"
    assert choose(output_dir).start is None
    with pytest.raises(BadCheckpoint, match=r"step-00000004 was saved .*, but no longer exists"):
        choose(output_dir, saved_step=4)
    shutil.copytree(checkpoint(whole, 2), output_dir / find_job_checkpoints.directory_name(2))
    decision = choose(output_dir, saved_step=4)
    assert decision.start.record.step == 2
    assert [each.path.name for each in decision.skipped] == ["step-00000004"]
    assert choose(output_dir, saved_step=2).skipped == ()


def test_one_that_goes_while_it_is_loaded_is_left_to_the_next_attempt(
    whole: Attempt, tmp_path: Path
) -> None:
    from zerotoolsd.trainer.checkpoints.resume_point import load_error

    path = tmp_path / find_job_checkpoints.directory_name(4)
    shutil.copytree(checkpoint(whole, 4), path)
    error = BadCheckpoint("it cannot be loaded")
    assert load_error(path, error) is error
    error.__cause__ = OSError(errno.ESTALE, "Stale file handle")
    ended: ZerotoolsError = load_error(path, error)
    assert isinstance(ended, MachineNotReady)
    assert (exit_code(ended), error_word(ended)) == (69, "not_ready")
    shutil.rmtree(path)
    ended = load_error(path, BadCheckpoint("it cannot be loaded"))
    assert isinstance(ended, CheckpointGone)
    assert (exit_code(ended), error_word(ended)) == (1, "crash")
    assert f"{path} was complete, but changed while it was loaded" in str(ended)


def test_a_disk_that_gives_errors_is_waited_for(tmp_path: Path) -> None:
    from zerotoolsd.trainer.checkpoints.resume_point import with_not_ready

    def stale() -> None:
        raise OSError(errno.ENOTCONN, "Transport endpoint is not connected", str(tmp_path))

    def forbidden() -> None:
        raise PermissionError(errno.EACCES, "Permission denied", str(tmp_path))

    with pytest.raises(MachineNotReady, match=f"{tmp_path} cannot be read: Transport"):
        with_not_ready(stale, tmp_path)
    with pytest.raises(PermissionError):
        with_not_ready(forbidden, tmp_path)
