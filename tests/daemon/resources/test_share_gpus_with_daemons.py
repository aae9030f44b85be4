"""A daemon's locks of GPUs, round by round."""

from __future__ import annotations

import asyncio
import resource
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

import pytest

from harness.fake_gpu_probe import FakeProbe, fake_gpu
from tests.daemon.daemons import make_job
from tests.daemon.dispatchers import CONFIG, running
from tests.daemon.lock_keepers import NOBODY, kept_locked, lock_directory
from zerotools.jobs.jobfile_tables.spec import JobSpec
from zerotools.sensors.snapshot import Snapshot
from zerotools.sensors.snapshot_source import SnapshotSource
from zerotoolsd.config.config_tables import GpusConfig
from zerotoolsd.resources import share_gpus_with_daemons
from zerotoolsd.resources.share_gpus_with_daemons import GpuArbiter
from zerotoolsd.supervisor.gpu_locks import acquire_locks
from zerotoolsd.users.account import user_name


def seen(gpus: Collection[str]) -> Snapshot:
    """A machine with these."""
    found = tuple(replace(fake_gpu(index), uuid=uuid) for index, uuid in enumerate(sorted(gpus)))
    return replace(SnapshotSource(FakeProbe()).read(), gpus=found)


def look(
    found: GpuArbiter,
    gpus: Collection[str],
    given: Collection[str] = (),
    leased: set[str] | None = None,
) -> dict[str, str]:
    """A round in which `given` are given away; what it said of the others."""

    async def one() -> dict[str, str]:
        async with found.lock_free_gpus(seen(gpus), leased or ()) as elsewhere:
            found.release_others({*given, *(leased or set())})
            return dict(elsewhere)

    return asyncio.run(one())


def make(path: Path, *ours: str) -> GpuArbiter:
    return GpuArbiter(str(path), lambda uuid: uuid in ours)


def test_what_one_gives_away_is_not_there_for_another_until_it_is_given_back(
    tmp_path: Path,
) -> None:
    gpus = lock_directory(tmp_path)
    mine, theirs = make(gpus), make(gpus)
    assert look(mine, {"A", "B"}, given={"A"}) == {}
    elsewhere = look(theirs, {"A", "B"}, given={"B"})
    assert list(elsewhere) == ["A"]
    assert elsewhere["A"].endswith("outside of this queue")
    assert list(look(mine, {"A", "B"}, given={"A"})) == ["B"]
    mine.release_others(())
    assert look(theirs, {"A", "B"}, given={"A", "B"}) == {}
    theirs.close()


def test_the_next_daemon_takes_what_its_attempts_hold_and_nothing_else(tmp_path: Path) -> None:
    gpus = lock_directory(tmp_path)
    attempts = make(gpus)
    look(attempts, {"A", "B"}, given={"A", "B"})
    restarted = make(gpus, "A")
    assert restarted.lacks_locks({"A"})
    assert list(look(restarted, set(), leased={"A", "B"})) == ["B"]
    assert not restarted.lacks_locks({"A"})
    told = restarted.locks_for_supervisor(("A", "B"))
    assert (told["gpus"], told["held"]) == (["A", "B"], ["A"])
    attempts.close()
    assert list(look(make(gpus), {"A"})) == ["A"]
    restarted.close()


def test_a_gpu_is_left_to_the_supervisor_that_an_earlier_daemon_had_started(tmp_path: Path) -> None:
    gpus = lock_directory(tmp_path)
    beginning = {"A"}
    restarted = GpuArbiter(str(gpus), lambda uuid: uuid == "A", lambda uuid: uuid in beginning)
    elsewhere = look(restarted, {"A", "B"}, leased={"A"})
    assert elsewhere == {"A": "is being taken by a job of this queue that is starting"}
    # What that supervisor was told: the earlier daemon lives no more, or nobody had the lock.
    taken = acquire_locks(restarted.locks_for_supervisor(["A"]))
    assert taken.refusal is None
    beginning.clear()
    assert look(restarted, {"A", "B"}, leased={"A"}) == {}
    assert restarted.locks_for_supervisor(["A"])["held"] == ["A"]
    restarted.close()
    taken.close()


def test_a_daemon_without_descriptors_does_not_believe_that_there_are_no_locks(
    tmp_path: Path,
) -> None:
    found = make(lock_directory(tmp_path))
    before, machine = resource.getrlimit(resource.RLIMIT_NOFILE), seen({"A"})

    async def one() -> dict[str, str]:
        resource.setrlimit(resource.RLIMIT_NOFILE, (0, before[1]))
        try:
            async with found.lock_free_gpus(machine, set()) as elsewhere:
                return dict(elsewhere)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, before)

    said = asyncio.run(one())["A"]
    assert said.startswith("cannot be locked: ")
    assert said.endswith("Too many open files")


def test_nobody_takes_a_gpu_while_another_looks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(share_gpus_with_daemons, "GATE_SECONDS", 0.0)
    gpus = lock_directory(tmp_path)
    mine, theirs = make(gpus), make(gpus)

    async def both() -> dict[str, str]:
        async with mine.lock_free_gpus(seen({"A"}), set()) as first:
            assert first == {}
            async with theirs.lock_free_gpus(seen({"A"}), set()) as second:
                return dict(second)

    assert "are in use by" in asyncio.run(both())["A"]


def test_without_a_directory_all_is_as_it_was_and_said_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    found = make(tmp_path / "none")
    for _ in range(3):
        assert look(found, {"A"}, given={"A"}) == {}
    assert found.locks_for_supervisor(("A",)) == {}
    assert "No such file" in str(found.to_json()["trouble"])
    (record,) = caplog.records
    assert "the GPUs are not locked" in record.getMessage()
    assert GpuArbiter("", lambda uuid: False).to_json()["trouble"] == share_gpus_with_daemons.OFF


def test_a_lock_that_was_removed_is_taken_again(tmp_path: Path) -> None:
    gpus = lock_directory(tmp_path)
    mine, theirs = make(gpus), make(gpus)
    look(mine, {"A"}, given={"A"})
    (gpus / "A").unlink()
    assert look(mine, {"A"}, given={"A"}) == {}
    assert list(look(theirs, {"A"})) == ["A"]
    mine.close()


def gpu_job() -> JobSpec:
    return make_job("release exit=0", device="cuda", gpus=1, ranks=None)


def test_a_job_gets_the_gpu_that_nobody_holds_and_the_next_is_told_who_has_the_other(
    tmp_path: Path,
) -> None:
    gpus = lock_directory(tmp_path)

    async def queue() -> None:
        config = replace(CONFIG, gpus=GpusConfig(locks=str(gpus)))
        probe = FakeProbe([fake_gpu(0, used_gib=0), fake_gpu(1, used_gib=0)])
        async with running(tmp_path / "state", probe, config) as run:
            first, _ = await run.service.submit(gpu_job(), uid=0, idempotency_key=None)
            began = await run.reach(first.id, "running")
            assert began.attempt is not None
            assert began.attempt.gpu_uuids == ("GPU-fake-1",)
            second, _ = await run.service.submit(gpu_job(), uid=0, idempotency_key=None)
            why = await run.waits(second.id)
            assert (
                f"GPU 0: in use by pid {pid} of {user_name(NOBODY)}, outside of this queue" in why
            )
            assert "GPU 1: job 1" in why
            run.release(first.id)
            await run.reach(second.id, "running")
            run.release(second.id)
            await run.reach(second.id, "succeeded")

    with kept_locked(gpus / "GPU-fake-0") as pid:
        asyncio.run(queue())
