"""Stories of one attempt without a daemon. The process that is killed is:

keeper       only the keeper; the supervisor continues
supervisor   only the supervisor; the keeper ends the ranks and writes the exit record
both         both at the same time; the exits of ranks that were recorded before count
rank         only the rank, while it saves
"""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from harness.faults.points import Found
from harness.faults.tracing import Injection, counted
from harness.faults.warm import Victim, exit_status
from harness.patience import Deadline
from zerotools.core.errors import BadFile
from zerotools.runs import find_job_checkpoints
from zerotoolsd.attempts import attempt_status
from zerotoolsd.attempts.orphan_processes import Traces, kill_orphans
from zerotoolsd.supervisor.attempt_plan import ATTEMPT, LEDGER, REQUEST, Plan
from zerotoolsd.supervisor.durable_files import write_json
from zerotoolsd.supervisor.exit_record.process_ledgers import RankLedger
from zerotoolsd.supervisor.procfs import all_processes
from zerotoolsd.trainer.checkpoints.commit_and_delete_checkpoints import check_structure

SECONDS = 60.0
STAND_IN = Path(__file__).with_name("stand_in.py")
KEEPER, SUPERVISOR, BOTH, RANK = "keeper", "supervisor", "both", "rank"
TOKEN = "{:032x}"
WAITS = "echo $$ > pid; read go < go; "
"""Makes the script wait until its pid is known, so that the kernel can later report its exit
status.
"""


@dataclass(frozen=True)
class AttemptStory:
    """One attempt of a shell script that exits with 0.

    With `stopped`, the script gets a request to stop, and then exits with 0. With `closes`, an
    export follows the script. With `alone`, the export kills the supervisor, so that the keeper
    must write the exit record. `victim` names the process that is killed.
    """

    victim: str
    stopped: bool = False
    closes: bool = False
    alone: bool = False

    @property
    def name(self) -> str:
        """The name of the story, for messages."""
        what = "stop" if self.stopped else "export" if self.closes else "exit"
        return f"{self.victim}: {what}{', alone' if self.alone else ''}"

    def run(self, path: Path, injection: Injection | None) -> Found:
        """Run the story; see `Story.run`."""
        path.mkdir()
        run, token = path / "run", f"{abs(hash(str(path))):032x}"
        run.mkdir()
        os.mkfifo(path / "go")
        write_json(run / ATTEMPT, self._plan(path, token).to_json())
        victim = Victim("supervisor", [run], path, injection, child=self.victim != KEEPER)
        if self.victim == BOTH:
            os.kill(victim.started.pid, signal.SIGSTOP)  # as if it were killed in that moment
        victim.go()
        pidfd = self._let_go(path, run, victim)
        ended_itself = victim.wait(SECONDS)
        if self.victim == BOTH and victim.was_hit():
            os.kill(victim.started.pid, signal.SIGKILL)
        elif self.victim == BOTH:
            os.kill(victim.started.pid, signal.SIGCONT)
        found = Found(hit=victim.was_hit(), calls=counted(victim.trace))
        if not ended_itself:
            found.wrong.append(f"it did not end: {(path / 'log').read_text()[-2000:]}")
        self._await_end(victim, run, token)
        victim.end()
        found.wrong += self._judge(path, run, token, pidfd, found)
        return found

    def _plan(self, path: Path, token: str) -> Plan:
        follows = ("/bin/sh", "-c", "kill -9 $PPID" if self.alone else "exit 0")
        last = "trap 'exit 0' TERM; : > ready; while :; do sleep 0.01; done"
        script = WAITS + (last if self.stopped else ": > ran; exit 0")
        return Plan(
            job_id=1,
            attempt=1,
            token=token,
            argv=("/bin/sh", "-c", script),
            env={"ZEROTOOLS_TOKEN": token, "PATH": os.environ["PATH"]},
            cwd=str(path),
            umask=0o077,
            world_size=1,
            gpu_uuids=(),
            grace_seconds=5.0,
            straggler_seconds=1.0,
            log_limit_bytes=2**20,
            closing=follows if self.closes else (),
            own_program=True,
        )

    def _let_go(self, path: Path, run: Path, victim: Victim) -> int | None:
        """Open a pidfd of the rank, and let the rank continue.

        Returns the pidfd; None if the rank never started.
        """
        pidfd = None
        while not victim.is_over():
            with suppress(OSError, ValueError):
                if pidfd is None:
                    pidfd = os.pidfd_open(int((path / "pid").read_text()))
                fd = os.open(path / "go", os.O_WRONLY | os.O_NONBLOCK)
                os.write(fd, b"go\n")
                os.close(fd)
                break
            time.sleep(0.002)
        while self.stopped and not victim.is_over():
            if (path / "ready").exists():
                write_json(run / REQUEST, {"reason": "cancel"})
                with suppress(ProcessLookupError):
                    os.kill(victim.started.pid, signal.SIGTERM)
                break
            time.sleep(0.002)
        return pidfd

    def _await_end(self, victim: Victim, run: Path, token: str) -> None:
        deadline = Deadline(SECONDS)
        while isinstance(
            found := attempt_status.run_dir_status(run, token),
            (attempt_status.Alive, attempt_status.Starting),
        ):
            if isinstance(found, attempt_status.Alive):
                os.close(found.pidfd)
            if deadline.has_passed():
                break
            time.sleep(0.005)
        if victim.started.is_running():
            with suppress(Exception):
                victim.started.wait(5)

    def _judge(
        self, path: Path, run: Path, token: str, pidfd: int | None, found: Found
    ) -> list[str]:
        status = None if pidfd is None else exit_status(pidfd)
        if pidfd is not None:
            os.close(pidfd)
        now = attempt_status.run_dir_status(run, token)
        record = now.record if isinstance(now, (attempt_status.Over, attempt_status.Gone)) else None
        ended = None if record is None else record.get("outcome")
        wrong = []
        if self.victim == BOTH:
            kill_orphans(Traces(token))  # as the daemon does, which finds none
        if left := processes_with(token):
            wrong.append(f"a process of the attempt was left: {left}")
        if (path / "ran").exists() and isinstance(now, attempt_status.NeverStarted):
            wrong.append("the rank has run, but no record says so, so it would run again")
        if isinstance(
            now, (attempt_status.Alive, attempt_status.Starting, attempt_status.Unreadable)
        ):
            wrong.append(f"the outcome is unknown: {now}")
        right = ("stopped",) if self.stopped else ("finished",)
        if status == 0 and ended not in right:
            if self.victim == BOTH and found.hit and not was_noted(run):
                found.unseen += 1
            else:
                wrong.append(f"the rank ended with 0, but its state is {now}: it would run again")
        kill_orphans(Traces(token))
        return wrong


def was_noted(run: Path) -> bool:
    """Return whether the run directory `run` has a record of how rank 0 ended."""
    try:
        return RankLedger.read(run / LEDGER, 1).lines()[0].status is not None
    except (OSError, ValueError):
        return False


def processes_with(token: str) -> list[str]:
    """Return the command lines of the processes with `token` in their environment."""
    found = []
    for pid in all_processes():
        with suppress(OSError):
            if token.encode() in Path(f"/proc/{pid}/environ").read_bytes():
                found.append(Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " "))
    return found


@dataclass(frozen=True)
class SaveStory:
    """A rank saves three checkpoints, keeps two of them, and is killed meanwhile.

    Afterwards, the newest checkpoint must be undamaged, and its step must not be older than any
    step that the rank reported as saved.
    """

    tensors: Path
    name: str = "rank: save"

    def run(self, path: Path, injection: Injection | None) -> Found:
        """Run the story; see `Story.run`."""
        path.mkdir()
        run, out = path / "run", path / "out"
        run.mkdir()
        spec = {"output_dir": str(out), "train": {"steps": 3}}
        write_json(run / "spec.json", spec)
        write_json(run / ATTEMPT, {"attempt": 2})
        env = {"LINES": str(path / "lines"), "TENSORS": str(self.tensors)}
        victim = Victim("rank", ["--run-dir", run], path, injection, env=env)
        victim.go()
        over = victim.wait(SECONDS)
        victim.end()
        found = Found(hit=victim.was_hit(), calls=counted(victim.trace))
        if not over:
            found.wrong.append("the rank did not end")
        found.wrong += self._judge(path, out)
        return found

    def _judge(self, path: Path, out: Path) -> list[str]:
        lines = (path / "lines").read_text().splitlines() if (path / "lines").exists() else []
        saved = [int(line.split()[1]) for line in lines if line.startswith("saved")]
        choice = find_job_checkpoints.newest_valid(out, structure=check_structure)
        step = choice.record.step if choice.record is not None else 0
        wrong = [f"a renamed checkpoint is damaged: {s.why}" for s in choice.skipped]
        if step < max(saved, default=0):
            wrong.append(f"step {max(saved)} was saved, but a resume would begin at step {step}")
        wrong += [f"a checkpoint is not verified: {line}" for line in lines if "doubt" in line]
        for directory in find_job_checkpoints.list_checkpoints(out):
            try:
                find_job_checkpoints.check_and_explain(directory, structure=check_structure)
            except BadFile as error:
                wrong.append(f"{directory} does not verify: {error}")
        return wrong


def attempt_stories(tensors: Path) -> list[AttemptStory | SaveStory]:
    """Return all stories of this module."""
    victims = (KEEPER, SUPERVISOR, BOTH)
    return [
        *(AttemptStory(victim) for victim in victims),
        *(AttemptStory(victim, closes=True) for victim in victims),
        *(AttemptStory(victim, stopped=True) for victim in victims),
        AttemptStory(KEEPER, closes=True, alone=True),
        SaveStory(tensors),
    ]
