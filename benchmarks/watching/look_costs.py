"""What looks at GPUs cost the daemon: the guard's each second, and one for what an attempt left.

    python -m benchmarks.watching.look_costs [--gpus 8] [--jobs 8]

Real processes, one for each job of each GPU, and real run directories; the GPUs are told of. The
guard's window of ten minutes is full. The processor time is that of this process alone: what NVML
takes in its own process is not in it.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.measuring import machine
from harness.started import Started
from zerotools.sensors.fake import FakeProbe, fake_gpu
from zerotools.sensors.snapshot import GpuProcess
from zerotools.sensors.source import SnapshotSource
from zerotoolsd.dispatch.memory_guard.escalation import reserve_of
from zerotoolsd.dispatch.memory_guard.gpu_forecast import WINDOWS, GpuCurve, GpuSample
from zerotoolsd.queue.rows import RUNNING, AttemptRow
from zerotoolsd.resources.gpu_sharing.measured_use import measure, roots_of
from zerotoolsd.resources.leaked_gpu_memory.attribution import suspects
from zerotoolsd.supervisor.durable import write_json
from zerotoolsd.supervisor.plan import RUN
from zerotoolsd.supervisor.procfs import boot_id, pids, read_process

GIB = 1 << 30


def main() -> None:
    """Print milliseconds."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gpus", type=int, default=8)
    parser.add_argument("--jobs", type=int, default=8)
    options = parser.parse_args()
    print(machine())
    with tempfile.TemporaryDirectory() as scratch, _jobs(scratch, options) as attempts:
        print(f"{options.gpus} GPUs x {options.jobs} jobs; {len(pids())} processes\n")
        gpus = [
            fake_gpu(
                index,
                used_gib=options.jobs,
                processes=[GpuProcess(_pid(each), GIB) for each in attempts[index]],
            )
            for index in range(options.gpus)
        ]
        snapshot = SnapshotSource(FakeProbe(gpus)).read()
        everyone = [each for those in attempts for each in those]
        curves = [_full_curve(options.jobs) for _ in gpus]
        _say("who holds what of each GPU", lambda: measure(snapshot.gpus, everyone))
        _say("the forecasts of all GPUs", lambda: [c.outlook(reserve_of(80 * GIB)) for c in curves])
        _say("whether each job grows", lambda: [c.grows(j) for c in curves for j in c.newest.held])
        roots = [root for each in everyone[1:] for root in roots_of(each)]
        over = everyone[0].run_dir, everyone[0].token
        _say("whose what is left is", lambda: suspects(*over, roots, os.getpid()))


@contextmanager
def _jobs(scratch: str, options: argparse.Namespace) -> Iterator[list[list[AttemptRow]]]:
    processes: list[Started] = []
    found: list[list[AttemptRow]] = []
    try:
        for gpu in range(options.gpus):
            found.append([])
            for _ in range(options.jobs):
                process = Started(["cat"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
                processes.append(process)
                found[gpu].append(_attempt(Path(scratch), len(processes), process.pid))
        yield found
    finally:
        for process in processes:
            process.end()


def _attempt(scratch: Path, number: int, pid: int) -> AttemptRow:
    run_dir, token = scratch / str(number), f"{number:032x}"
    run_dir.mkdir()
    seen = read_process(pid)
    assert seen is not None
    named = {"pid": pid, "start_ticks": seen.start_ticks}
    write_json(run_dir / RUN, {**named, "keeper": named, "token": token, "boot_id": boot_id()})
    return AttemptRow(
        job_id=number,
        number=1,
        token=token,
        state=RUNNING,
        run_dir=str(run_dir),
        gpu_uuids=(),
        resumed_from=str(pid),
        started=None,
        ended=None,
        result=None,
    )


def _pid(attempt: AttemptRow) -> int:
    return int(attempt.resumed_from or 0)


def _full_curve(jobs: int) -> GpuCurve:
    curve = GpuCurve()
    for second in range(int(WINDOWS[-1]) + 2):
        held = dict.fromkeys(range(jobs), GIB + second)
        curve.add(GpuSample(float(second), 80 * GIB, 70 * GIB, held, dict.fromkeys(held, GIB)))
    return curve


def _say(what: str, do: Callable[[], object], times: int = 10) -> None:
    used = []
    for _ in range(times):
        begun = time.thread_time()
        do()
        used.append(time.thread_time() - begun)
    print(f"  {what:<28} {1000 * sorted(used)[times // 2]:6.1f} ms")


if __name__ == "__main__":
    main()
