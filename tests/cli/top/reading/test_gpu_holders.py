from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.fake_gpu_probe import fake_gpu
from harness.started import Started
from tests.daemon.http.api.made_views import a_job, a_view, an_attempt
from tests.daemon.waiting import wait_for
from zerotools.cli.job_views.describe_job import Job
from zerotools.cli.top.reading.cached_value import CachedValue
from zerotools.cli.top.reading.gpu_holders import GpuHolder, GpuHolders, memory_by_owner
from zerotools.cli.top.reading.job_list import completed
from zerotools.sensors.snapshot import GpuProcess

GIB = 1 << 30


def holders(*, is_here: bool = True) -> GpuHolders:
    return GpuHolders(CachedValue(10.0, lambda: 0.0), is_here=is_here)


def a_running_job(run_dir: str, uid: int = 0) -> Job:
    attempts = (an_attempt(run_dir=run_dir),)
    view = a_view(3, a_job(name="tiny"), uid=uid, state="running", attempts=attempts)
    return completed([view.to_json()])[0]


@pytest.fixture
def rank(tmp_path: object) -> Iterator[Started]:
    """A process that looks like a rank."""
    environment = {**os.environ, "ZEROTOOLS_RUN_DIR": str(tmp_path)}
    process = Started([sys.executable, "-c", "input()"], env=environment, stdin=-1)
    own = Path(f"/proc/{process.pid}/environ")  # another's until the program is there
    wait_for(lambda: b"ZEROTOOLS_RUN_DIR" in own.read_bytes(), "the program")
    yield process
    process.end()


def test_ranks_belong_to_their_job_and_others_are_strangers(
    rank: Started, tmp_path: object
) -> None:
    gpu = fake_gpu(
        0, used_gib=60, processes=[GpuProcess(os.getpid(), GIB), GpuProcess(rank.pid, 40 * GIB)]
    )
    reader = holders()
    for _ in range(2):  # the second time it is known
        found = reader.read([gpu], [a_running_job(str(tmp_path))], {})[0]
        assert [(each.pid, each.kind) for each in found] == [
            (rank.pid, "job"),
            (os.getpid(), "stranger"),
        ]
        assert found[0].owner == "job 3 (tiny)"
        assert "python" in found[1].owner
    elsewhere = reader.read([gpu], [], {})[0]
    assert elsewhere[0].owner == f"a job of another daemon ({tmp_path})"


def test_a_process_of_whom_a_gpu_is_leased_to_is_their_jobs() -> None:
    """Whose environment cannot be read, and so not which job it is of."""
    gpu = fake_gpu(0, processes=[GpuProcess(os.getpid(), GIB)])
    job = a_running_job("/elsewhere", uid=os.getuid())
    leases = {"GPU-fake-0": job}
    assert holders().read([gpu], [job], leases)[0][0] == GpuHolder(
        os.getpid(), "job 3 (tiny)", "job", GIB
    )
    other = {"GPU-fake-0": {**job, "uid": os.getuid() + 1}}
    assert holders().read([gpu], [job], other)[0][0].kind == "stranger"


def test_on_another_machine_the_lease_alone_says_whose_it_is() -> None:
    gpus = [fake_gpu(n, processes=[GpuProcess(1, GIB)]) for n in range(2)]
    leases = {"GPU-fake-0": a_running_job("/x")}
    found = holders(is_here=False).read(gpus, [], leases)
    assert (found[0][0].owner, found[1][0].owner) == ("job 3 (tiny)", "pid 1")


def test_a_process_that_is_gone_is_told() -> None:
    gpu = fake_gpu(0, processes=[GpuProcess(2**22 + 5, None)])
    assert holders().read([gpu], [], {})[0][0].owner.startswith("not visible from here")


def test_the_memory_of_a_gpu_is_split_by_who_holds_it() -> None:
    held = [
        GpuHolder(1, "job 3 (tiny)", "job", 20 * GIB),
        GpuHolder(2, "job 3 (tiny)", "job", 10 * GIB),
        GpuHolder(3, "ada: python x.py", "stranger", 10 * GIB),
    ]
    listed = [GpuProcess(each.pid, each.held_bytes) for each in held]
    shares = memory_by_owner(fake_gpu(0, used_gib=60, processes=listed), held)
    assert [(share.kind, share.held_bytes // GIB) for share in shares] == [
        ("job", 30),
        ("residue", 20),
        ("stranger", 10),
    ]


def test_what_a_driver_keeps_or_does_not_tell_is_no_residue() -> None:
    assert memory_by_owner(fake_gpu(0, used_gib=0.6), []) == ()
    unknown = [GpuHolder(1, "job 1", "job", None)]
    gpu = fake_gpu(0, used_gib=60, processes=[GpuProcess(1, None)])
    assert [share.kind for share in memory_by_owner(gpu, unknown)] == ["job"]
