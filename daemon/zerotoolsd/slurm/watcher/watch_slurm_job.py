"""Watches one job under Slurm, from its submission to its end.

The job itself does not need it: if this process is killed, the daemon starts it again, and it
continues to watch. If Slurm's controller does not respond, it waits without any conclusion. Its
exit reports the job's: 0 if the job succeeded, or ended on request; else with a sentence.
"""

from __future__ import annotations

import json
import os
import select
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from zerotools.core.errors import BadRequest, SlurmUnreachable, Unsupported, ZerotoolsError
from zerotools.io.telemetry.datagrams import Sender
from zerotools.jobs import states
from zerotools.jobs.jobfile.stored import read_stored
from zerotools.jobs.slurm.job_directory import JobDirectory, slurm_home
from zerotools.jobs.slurm.slurm_commands import SlurmCommands
from zerotools.jobs.slurm.slurm_jobs import SlurmJobs
from zerotools.jobs.tables.spec import JobSpec
from zerotoolsd.slurm.watcher.relay import Relay
from zerotoolsd.slurm.watcher.submit_once import handed_over, key_of, note_told
from zerotoolsd.supervisor.exit_record.first_failure import EXIT_BAD_JOB, EXIT_NOT_READY
from zerotoolsd.supervisor.exit_record.outcome import EXIT_STOPPED
from zerotoolsd.supervisor.signal_wakeup import SignalWaker
from zerotoolsd.supervisor.transient_errors import NOT_READY

LOOK_SECONDS = 3.0
SPEC = "spec.json"


def main() -> int:
    """Watch the job of the run directory in the environment; return the exit status."""
    run_dir = Path(os.environ["ZEROTOOLS_RUN_DIR"])
    sender = Sender(os.environ.get("ZEROTOOLS_NOTIFY"))
    stored = read_stored(json.loads((run_dir / SPEC).read_text("utf-8")))
    assert stored.spec is not None
    attendant = SlurmWatcher(run_dir, sender, stored.spec)
    try:
        return attendant.run()
    except SlurmUnreachable as error:
        attendant.complain(str(error), kind=NOT_READY)
        return EXIT_NOT_READY
    except ZerotoolsError as error:
        attendant.complain(str(error))
        return EXIT_BAD_JOB


class SlurmWatcher:
    """Attends one job under Slurm."""

    def __init__(
        self, run_dir: Path, sender: Sender, spec: JobSpec, commands: SlurmCommands | None = None
    ) -> None:
        self._run_dir, self._sender, self._spec = run_dir, sender, spec
        self._commands = commands or SlurmCommands()
        self._home = slurm_home()
        self._jobs = SlurmJobs(self._commands, self._home)
        self._said: object = None

    def run(self) -> int:
        """Run until the job is over; return the exit status.

        Raises ZerotoolsError if it was not submitted.
        """
        signals = SignalWaker()
        key = key_of(self._run_dir.parent, self._spec.name)
        directory = handed_over(self._commands, self._jobs, self._home, self._spec, key)
        name = directory.path.name
        self._say(f"the job's records under Slurm are in {directory.path}")
        relay = Relay(self._jobs, name, self._sender, self._run_dir)
        waiting = select.poll()
        waiting.register(signals.socket, select.POLLIN)
        asked = False
        while True:
            view = self._jobs.job(name)
            self._tell(view)
            relay.catch_up(view)
            if view["state"] in states.TERMINAL:
                relay.catch_up(self._jobs.job(name))
                return self._over(directory, view, asked=asked)
            self._lift_wait(view)
            waiting.poll(LOOK_SECONDS * 1000)
            signals.clear()
            if signals.asked and not asked:
                asked = True
                self._cancel(name)

    def _cancel(self, name: str) -> None:
        try:
            self._jobs.cancel(name)
        except SlurmUnreachable as error:  # it reads in its directory that it is to end
            self._say(str(error))
        except BadRequest:
            pass  # it has ended meanwhile

    def _lift_wait(self, view: dict[str, Any]) -> None:
        """Skip the two minutes that Slurm waits before it restarts a job."""
        again = view["attempts"] and view["slurm"]["state"] == "PENDING"
        if again and "BeginTime" in str(view["reason"]):
            with suppress(BadRequest, SlurmUnreachable, Unsupported):
                self._commands.begin_now(str(view["slurm"]["id"]))

    def _tell(self, view: dict[str, Any]) -> None:
        number, state = view["slurm"]["id"], view["slurm"]["state"]
        said = (number, state, view["state"], view["reason"])
        if said == self._said:
            return
        self._said = said
        where = f" on {view['slurm']['nodes_now']}" if view["slurm"]["nodes_now"] else ""
        words = f"Slurm's job {number or '(number not known yet)'}: {state or 'not listed'}{where}"
        reason = f"; {view['reason']}" if view["reason"] else ""
        self._say(f"{words}; the job is {states.in_words(view['state'])}{reason}")
        if view["state"] in (states.QUEUED, states.LAUNCHING, states.ON_HOLD):
            waits = f"waiting in Slurm's queue (job {number})"
            doing = (f"starting under Slurm{where}" if where else waits) + reason
            self._sender.send(
                {"event": "phase", "rank": 0, "doing": doing, "time": time.time()}, wait=True
            )

    def _over(self, directory: JobDirectory, view: dict[str, Any], *, asked: bool) -> int:
        state, reason = view["state"], view["reason"] or "it did not say why"
        status = EXIT_STOPPED if asked else EXIT_BAD_JOB
        if state == states.SUCCEEDED:
            status = 0
        elif asked:
            self._say(f"the job has ended: {reason}")
        else:
            self.complain(f"under Slurm it {state}: {reason}")
        note_told(directory, self._run_dir, status)
        return status

    def complain(self, why: str, kind: str | None = None) -> None:
        """Report why it ends, in one sentence."""
        self._say(why)
        told: dict[str, Any] = {"event": "error", "rank": 0, "message": why, "time": time.time()}
        self._sender.send(told | ({} if kind is None else {"kind": kind}), wait=True)

    def _say(self, text: str) -> None:
        print(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {text}", flush=True)
