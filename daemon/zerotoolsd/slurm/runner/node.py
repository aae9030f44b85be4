"""Runs one attempt on one node. srun starts one such process on each node.

The process prepares the run directory as a daemon would, starts a supervisor in it, and then keeps
running next to the supervisor. It reports that the node is alive, passes a stop on to the
supervisor, and ends all its child processes if a newer attempt has begun. If this process is
killed, the supervisor ends too, and saves first if it has time.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from zerotools.core.counts_and_sizes import count_text
from zerotools.core.errors import BadRequest, ZerotoolsError
from zerotools.io.files.mounts import read_mounts
from zerotools.jobs.jobfile.parse import job_to_dict
from zerotools.jobs.jobfile_tables.job_for_each_node import of_node
from zerotools.jobs.jobfile_tables.spec import JobSpec
from zerotools.jobs.slurm.job_directory import JobDirectory, read_record
from zerotoolsd.attempts import prepare_run_directory
from zerotoolsd.attempts.backends.spawn_supervisor import (
    open_log,
    supervisor_command,
    supervisor_environment,
)
from zerotoolsd.attempts.make_attempt_plan import (
    EarlierCheckpoints,
    LaunchSettings,
    trainer_command,
)
from zerotoolsd.config.daemon_config import Config
from zerotoolsd.queue import lifecycle
from zerotoolsd.queue.rows import LAUNCHING, AttemptRow, JobRow
from zerotoolsd.slurm.runner.liveness import BEAT_SECONDS, LivenessFile
from zerotoolsd.slurm.runner.slurm_job_record import read_job
from zerotoolsd.supervisor.attempt_plan import EXIT, RUN
from zerotoolsd.supervisor.durable_files import write_json
from zerotoolsd.supervisor.spawn_child import handle_until_exit
from zerotoolsd.supervisor.start_ranks import become_subreaper
from zerotoolsd.supervisor.stop.kill_descendants import kill_all
from zerotoolsd.supervisor.stop.stop_request_file import write_request
from zerotoolsd.supervisor.transient_os_errors import NOT_READY, error_text, is_transient

SETTINGS = "attempt.json"
"""Name of the file in the attempt's directory with the settings that are the same for all
nodes.
"""
STOP = "stop.json"
"""Name of the file in the attempt's directory that asks the nodes to stop. It has `reason` and
`grace_seconds`, or `kill` to end them at once.
"""
SETTINGS_SECONDS = 60.0
"""Longest time, in seconds, until a shared directory shows a file that another node has
written.
"""
LOOK_SECONDS = 0.5
_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None)


def main(arguments: Sequence[str]) -> int:
    """Run an attempt on this node. `arguments` are JOB_DIRECTORY and ATTEMPT; srun's environment
    variables have the number of the node.

    Returns 0 if the end of the attempt is recorded, else 1.
    """
    directory, attempt = JobDirectory(Path(arguments[0])), int(arguments[1])
    node = int(os.environ["SLURM_NODEID"])
    run_dir = directory.run_dir(attempt, node)
    umask = os.umask(0o022)
    os.umask(umask)
    beat = LivenessFile(directory.attempt_path(attempt), str(node))
    beat.refresh()
    try:
        settings = _settings(directory, attempt)
        prepare_node(directory, attempt, node, settings, umask)
    except ZerotoolsError as error:
        return _not_begun(run_dir, lifecycle.BAD_JOB, str(error))
    except OSError as error:
        outcome = NOT_READY if is_transient(error) else lifecycle.CRASHED
        return _not_begun(run_dir, outcome, error_text(error))
    return NodeRunner(directory, attempt, run_dir, beat).run()


def prepare_node(
    directory: JobDirectory, attempt: int, node: int, settings: Mapping[str, Any], umask: int
) -> None:
    """Create the run directory of the node `node`, with all files that its processes need.
    Raises ZerotoolsError and OSError.
    """
    job = read_job(directory, int(settings["submission"]))
    nodes = int(settings["nodes"])
    spec = of_node(job.spec, nodes, str(settings["address"]), node)
    gpus = gpus_of(spec, os.environ)
    row = AttemptRow(
        job_id=job.id,
        number=attempt,
        token=f"{settings['token']}{node:04x}",
        state=LAUNCHING,
        run_dir=str(directory.run_dir(attempt, node)),
        gpu_uuids=gpus,
        resumed_from=None,
        started=None,
        ended=None,
        result=None,
        world_size=spec.world_size,
    )
    here = _row_of(job, spec)
    launch = LaunchSettings(config=_config(), command=trainer_command, umask=umask)
    earlier = EarlierCheckpoints(
        newest=[str(each) for each in settings.get("reported", ())],
        by_program=[str(each) for each in settings.get("by_program", ())],
    )
    prepare_run_directory.prepare_run_directory(
        here, row, settings=launch, earlier=earlier, mounted=read_mounts()
    )


def _row_of(job: JobRow, spec: JobSpec) -> JobRow:
    spec = replace(spec, output_dir=job.output_dir)
    return replace(job, spec_text=json.dumps(job_to_dict(spec))).with_reading(spec)


def _config() -> Config:
    """Return the default configuration of the daemon, but without control groups, because Slurm
    has its own.
    """
    config = Config()
    return replace(config, limits=replace(config.limits, cgroups=False))


def gpus_of(spec: JobSpec, environment: Mapping[str, str]) -> tuple[str, ...]:
    """Return the GPUs that Slurm has given to this node, by the names that CUDA accepts.

    Raises BadRequest if these are fewer GPUs than the job needs.
    """
    if spec.device == "cpu":
        return ()
    given = [each for each in environment.get("CUDA_VISIBLE_DEVICES", "").split(",") if each]
    if len(given) < spec.world_size:
        wanted = count_text(spec.world_size, "GPU")
        raise BadRequest(
            f"node {socket.gethostname()} has {count_text(len(given), 'GPU')} from Slurm, but "
            f"the job needs {wanted} on each node; set gpus to a lower number, or choose nodes "
            "with enough GPUs (slurm.constraint, slurm.gpu_type)"
        )
    return tuple(given[: spec.world_size])


def _settings(directory: JobDirectory, attempt: int) -> dict[str, Any]:
    until = time.monotonic() + SETTINGS_SECONDS
    path = directory.attempt_path(attempt) / SETTINGS
    while (found := read_record(path)) is None:
        if time.monotonic() > until:
            raise BadRequest(
                f"node {socket.gethostname()} does not see {path}: the job's directory is not the "
                "same on all nodes; set ZEROTOOLS_SLURM_DIR to one that they share, and submit "
                "the job again"
            )
        time.sleep(LOOK_SECONDS)
    return found


def _not_begun(run_dir: Path, outcome: str, cause: str) -> int:
    run_dir.mkdir(parents=True, exist_ok=True)
    write_json(run_dir / EXIT, {"outcome": outcome, "cause": cause, "ended": time.time()})
    return 0


class NodeRunner:
    """Starts the supervisor on a node, and waits next to it until it has ended."""

    def __init__(
        self, directory: JobDirectory, attempt: int, run_dir: Path, beat: LivenessFile
    ) -> None:
        self._directory, self._attempt = directory, attempt
        self._run_dir, self._beat = run_dir, beat
        self._stop_path = directory.attempt_path(attempt) / STOP
        self._asked: dict[str, Any] | None = None
        self._signalled = False

    def run(self) -> int:
        """Start the supervisor and wait until it has ended.

        Returns 0 if the supervisor has recorded the end of the attempt, else 1.
        """
        become_subreaper()
        handle_until_exit(self._on_signal, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
        with os.fdopen(open_log(self._run_dir), "wb") as log:
            supervisor = subprocess.Popen(
                supervisor_command(self._run_dir),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd="/",
                env=supervisor_environment(),
                start_new_session=True,
                preexec_fn=_end_with_parent,
            )
        due = 0.0
        while supervisor.poll() is None:
            if (now := time.monotonic()) >= due:
                due = now + BEAT_SECONDS
                self._beat.refresh()
                self._check_requests(supervisor)
            with suppress(subprocess.TimeoutExpired):
                supervisor.wait(LOOK_SECONDS)
        kill_all(10.0)  # the remaining processes of supervisor and keeper, killed together
        return 0 if (self._run_dir / EXIT).exists() else 1

    def _on_signal(self, *_: object) -> None:
        self._signalled = True

    def _check_requests(self, supervisor: subprocess.Popen[bytes]) -> None:
        if max(self._directory.attempts(), default=0) > self._attempt:
            print("a newer attempt of this job began: this one is ended", flush=True)
            supervisor.kill()
            return
        wanted = read_record(self._stop_path)
        if wanted is None and self._signalled:
            wanted = {"reason": "Slurm"}
        if wanted is None or wanted == self._asked:
            return
        if wanted.get("kill") is True:
            supervisor.kill()
            return
        if not (self._run_dir / RUN).exists():
            return  # a SIGTERM would kill it now; it is asked after its start
        try:
            write_request(self._run_dir, str(wanted.get("reason")), wanted.get("grace_seconds"))
        except OSError as error:
            print(
                f"the supervisor does not accept the request to stop: {error.strerror}",
                file=sys.stderr,
            )
        supervisor.send_signal(signal.SIGTERM)
        self._asked = wanted


def _end_with_parent() -> None:
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
