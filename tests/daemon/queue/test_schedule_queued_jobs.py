"""The queue of pending jobs follows the store: what changed since is all that is read."""

from __future__ import annotations

import errno
import json
import tempfile
from math import inf
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from harness.fake_gpu_probe import fake_gpu
from tests.daemon.daemons import make_job
from tests.daemon.made_attempts import an_attempt_row
from tests.daemon.queue.scheduling.deciding import seen, wants
from zerotools.sensors.snapshot import GpuProcess
from zerotoolsd.config.config_tables import LimitsConfig
from zerotoolsd.queue.clocks import Moment
from zerotoolsd.queue.expected_memory import ExpectedMemory
from zerotoolsd.queue.fault_isolation import JobGuard
from zerotoolsd.queue.lifecycle import EDIT, JobStatus
from zerotoolsd.queue.request_from_job_file import gpu_memory_for, need_of
from zerotoolsd.queue.rows import JobRow
from zerotoolsd.queue.schedule_queued_jobs import QueuePlacement
from zerotoolsd.queue.scheduling.memory_left_for_jobs import DeclaredMemory, HostMemoryNow
from zerotoolsd.queue.store import Store
from zerotoolsd.queue.write_rows import JobParts


class ReadingStore(Store):
    """Which jobs were read."""

    def __init__(self, state_dir: Path) -> None:
        super().__init__(state_dir)
        self.read: list[int] = []

    def job(self, job_id: int) -> JobRow:
        self.read.append(job_id)
        return super().job(job_id)


def queue_one(store: Store, uid: int = 0) -> JobRow:
    job, _ = store.submit(
        uid=uid,
        name="fake",
        spec=make_job("exit=0"),
        output_dir=None,
        default_output=Path("/nowhere"),
        idempotency_key=None,
        now=1.0,
    )
    return job


def test_a_job_that_made_room_on_a_gpu_in_vain_does_not_share_any_more() -> None:
    spec = make_job("exit=0", device="cuda", gpus=1, ranks=None, memory={"per_gpu": "10GiB"})
    assert need_of(spec).gpu_bytes == 10 * 2**30
    assert need_of(spec, ExpectedMemory(alone=True)).gpu_bytes is None


def test_the_memory_of_a_job_s_gpus_is_that_of_the_smallest_without_a_desktop() -> None:
    screen = [GpuProcess(812, 2 * GIB, graphics=True)]
    cards = (
        fake_gpu(0, total_gib=24, used_gib=2, processes=screen),
        fake_gpu(1, total_gib=24),
        fake_gpu(2, total_gib=12),
    )
    machine = seen(*cards)
    found = [gpu_memory_for(wants(1, count).need, machine) for count in (1, 2, 3)]
    assert found == [24 * GIB, 22 * GIB, 12 * GIB]
    assert gpu_memory_for(wants(1, (2,)).need, machine) == 12 * GIB
    assert gpu_memory_for(wants(1, 1).need, None) is None


def placement_over(store: Store, tmp_path: Path, **changes: Any) -> QueuePlacement:
    values = {"hold": lambda job_id, why: None, "touch": lambda job_id, doing: None, **changes}
    return QueuePlacement(store, JobGuard(tmp_path / "jobs", **values), LimitsConfig(cpu_ranks=3))


def cancel(store: Store, job_id: int) -> None:
    with store.change(store.job(job_id), JobStatus(state="cancelled"), "cancel", now=2.0):
        pass


def queue_again(store: Store, job_id: int) -> None:
    with store.change(store.job(job_id), JobStatus(state="queued"), "resume", now=3.0):
        pass


def test_only_what_changed_is_read(tmp_path: Path) -> None:
    store = ReadingStore(tmp_path)
    placement = placement_over(store, tmp_path)
    ids = [queue_one(store).id for _ in range(5)]
    store.read.clear()
    for _ in range(2):
        assert placement.catch_up(inf)
        assert list(placement.pending) == ids
        decisions = placement.decide(None)
        assert [start.job_id for start in decisions.starts] == [1]
        assert decisions.waits[5] == "needs 2 CPU ranks: waits behind job 2"
    assert store.read == ids
    placement.cache_job(queue_one(store))
    cancel(store, 3)
    store.read.clear()
    assert placement.catch_up(inf)
    assert list(placement.pending) == [1, 2, 4, 5, 6]
    assert store.read == [6]  # job 3 waits no more
    assert decisions.waits.get(3) is None
    queue_again(store, 3)
    cancel(store, 6)
    store.remove(store.job(6), 4.0, "to make room")
    assert placement.catch_up(inf)
    assert sorted(placement.pending) == [1, 2, 3, 4, 5]
    store.close()


def test_a_job_that_was_edited_since_it_was_expected_is_read_again(tmp_path: Path) -> None:
    """Two edits may come so close that the row of the first is expected after the second."""
    store = Store(tmp_path)
    placement = placement_over(store, tmp_path)
    job, parts = queue_one(store), JobParts.of(make_job("exit=0", ranks=1))
    queue_one(store)  # of 2 ranks: both fit if the first has one
    with store.change(job, job.standing, EDIT, now=2.0) as change:
        change.set_spec("fake", parts.full_text, parts.set_text, job.output_dir, None)
    placement.cache_job(job)
    assert placement.catch_up(inf)
    assert [start.job_id for start in placement.decide(None).starts] == [1, 2]
    store.close()


def test_the_line_is_read_anew_where_events_are_gone(tmp_path: Path) -> None:
    store = Store(tmp_path)
    placement = placement_over(store, tmp_path)
    for _ in range(4):
        queue_one(store)
    assert placement.catch_up(inf)
    cancel(store, 2)
    queue_one(store)
    queue_one(store)
    store.remove_events(before=10.0)
    assert placement.catch_up(inf)
    assert sorted(placement.pending) == [1, 3, 4, 5, 6]
    store.close()


def test_a_long_queue_is_read_in_parts(tmp_path: Path) -> None:
    store = Store(tmp_path)
    placement = placement_over(store, tmp_path)
    for _ in range(3):
        queue_one(store)
    assert [placement.catch_up(0.0) for _ in range(3)] == [False, False, True]
    assert len(placement.pending) == 3
    store.close()


def test_a_job_that_can_neither_be_read_nor_held_now_is_looked_up_again(tmp_path: Path) -> None:
    """The trouble may be the machine's; nobody tells when it has passed."""
    store = Store(tmp_path)
    in_trouble = True

    def touch(job_id: int, doing: str) -> None:
        if in_trouble and job_id == 1:
            raise OSError(errno.EMFILE, "no descriptors")

    placement = placement_over(store, tmp_path, touch=touch)
    queue_one(store)
    queue_one(store)
    assert placement.catch_up(inf)
    assert list(placement.pending) == [2]
    in_trouble = False
    assert placement.catch_up(inf)
    in_trouble = True
    assert sorted(placement.pending) == [1, 2]
    assert [start.job_id for start in placement.decide(None).starts] == [2]
    in_trouble = False
    assert [start.job_id for start in placement.decide(None).starts] == [1]
    store.close()


def test_jobs_that_may_not_start_now_keep_nobody_waiting(tmp_path: Path) -> None:
    store = Store(tmp_path)
    placement = placement_over(store, tmp_path)
    queue_one(store)
    queue_one(store)
    assert placement.catch_up(inf)
    decisions = placement.decide(None, {1: "its processes still live"})
    assert [start.job_id for start in decisions.starts] == [2]
    assert decisions.waits == {1: "its processes still live"}
    store.close()


@given(st.lists(st.tuples(st.sampled_from("sscqqhrelp"), st.integers(0, 9)), max_size=25))
@settings(max_examples=40, deadline=None)
def test_whatever_happens_the_line_is_that_of_the_store(steps: list[tuple[str, int]]) -> None:
    """s: submit, c: cancel, q: queue again, h: hold, r: remove, e: forget events, l: look,
    p: another priority."""
    with tempfile.TemporaryDirectory() as directory:
        store = Store(Path(directory))
        placement = placement_over(store, Path(directory))
        for step, number in steps:
            job = next((job for job in store.jobs() if job.id == number), None)
            if step == "s":
                placement.cache_job(queue_one(store))
            elif step == "e":
                store.remove_events(before=10.0)
            elif step == "l":
                placement.catch_up(0.0 if number % 2 else 1.0)
            elif job is not None and step == "r":
                if job.state == "cancelled":
                    store.remove(job, 4.0, "to make room")
            elif job is not None and step == "p":
                with store.change(job, job.standing, "priority", now=2.0, why="p") as change:
                    change.set_priority(number - 5)
            elif job is not None:
                state = {"c": "cancelled", "q": "queued", "h": "held"}[step]
                with store.change(job, JobStatus(state=state), step, now=2.0):
                    pass
        while not placement.catch_up():
            pass
        assert sorted(placement.pending) == store.ids("queued")
        starts = [start.job_id for start in placement.decide(None).starts]
        in_turn = sorted(store.jobs(["queued"]), key=lambda job: (-job.priority, job.id))
        first = [job.id for job in in_turn[:1]]
        assert starts == first, "two ranks each, and three are allowed"
        store.close()


GIB = 2**30


def queue_estimated(store: Store, host_gib: int) -> JobRow:
    job, _ = store.submit(
        uid=0,
        name="fake",
        spec=make_job("exit=0", ranks=1),
        output_dir=None,
        default_output=Path("/nowhere"),
        idempotency_key=None,
        now=1.0,
        expected=json.dumps({"host": host_gib * GIB, "gpu": 0, "less_host": None}),
    )
    return job


def test_an_estimate_counts_until_an_attempt_has_trained_and_then_what_that_took(
    tmp_path: Path,
) -> None:
    there = HostMemoryNow(10 * GIB)
    store = Store(tmp_path)
    guard = JobGuard(tmp_path, lambda job_id, why: None, lambda job_id, doing: None)
    memory = DeclaredMemory(host_total=100 * GIB)
    limits = LimitsConfig(cpu_ranks=3)
    placement = QueuePlacement(store, guard, limits, memory=memory, host_now=lambda: there)
    job = queue_estimated(store, 16)  # of which 12 count
    assert placement.catch_up(inf)
    assert (
        placement.decide(None)
        .waits[job.id]
        .startswith("needs 12.0 GiB of host memory (estimated): 10.0 GiB are free")
    )
    result = {"steps_done": 3, "peak_host_bytes": 2 * GIB, "peak_gpu_bytes": None}
    with store.change(job, JobStatus(state="running"), "start", now=2.0) as change:
        change.add_attempt(an_attempt_row(job_id=job.id, state="running"))
        change.attempt_started(1, Moment(2.0, None, None))
    started = store.job(job.id)
    with store.change(started, JobStatus(state="queued"), "retry", now=3.0, attempt=1) as change:
        change.attempt_ended(1, 3.0, result, None, None)
    assert placement.catch_up(inf)
    assert [start.job_id for start in placement.decide(None).starts] == [job.id]
    store.close()


def test_two_jobs_do_not_start_on_the_memory_of_one(tmp_path: Path) -> None:
    store = Store(tmp_path)
    guard = JobGuard(tmp_path, lambda job_id, why: None, lambda job_id, doing: None)
    placement = QueuePlacement(
        *(store, guard, LimitsConfig(cpu_ranks=3)),
        memory=DeclaredMemory(host_total=100 * GIB),
        host_now=lambda: HostMemoryNow(20 * GIB),
    )
    first, second = queue_estimated(store, 16), queue_estimated(store, 16)
    assert placement.catch_up(inf)
    decisions = placement.decide(None)
    assert [start.job_id for start in decisions.starts] == [first.id]
    assert "8.0 GiB are free" in str(decisions.waits[second.id])
    store.close()
