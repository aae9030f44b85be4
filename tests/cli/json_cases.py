"""Every command with --json, as it is run for `test_json_output`: against golden checkpoints, and
against the API over a service in memory."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from harness.started import Started
from tests.cli.commands.test_estimate import MACHINE
from tests.cli.commands.test_import_config import PLAIN
from tests.cli.commands.test_submit import JOB as JOB_FILE
from tests.cli.conftest import Done
from tests.daemon.http.api.fakes import ADOPTABLE, FakeService
from tests.daemon.http.api.made_views import an_attempt
from tests.golden_files import DEEPSPEED, JOB
from tests.io.ssh.double import SshDouble
from tests.jobs.client.test_queue_backup import fill
from tests.maps.hub_models import written
from tests.ops.estimate.tiny_configs import config
from tests.ops.gathering.nodes import split
from tests.ops.thinning.made import copy_of
from tests.ops.verification.damage import copy
from zerotools.cli.main import build, run
from zerotools.jobs.client.queue_backup import back_up_queue

ZERO3 = DEEPSPEED / "z3-bf16-w2" / "checkpoint"
FOUR = DEEPSPEED / "z3-bf16-w4" / "checkpoint"
NODES = {"n1": ("*_rank_[01]_*", "latest"), "n2": ("*_rank_[23]_*", "latest")}


@dataclass
class Shell:
    """Runs commands; `service` is the daemon that `socket` leads to, with six jobs."""

    place: Path
    service: FakeService
    socket: Path
    capsys: pytest.CaptureFixture[str]
    monkeypatch: pytest.MonkeyPatch

    def __post_init__(self) -> None:
        states = ("queued", "failed", "succeeded", "on_hold", "paused")
        for state in states:
            self.service.add(state=state)
        self.service.add(state="running", reason=None, attempts=(an_attempt(),))
        self.service.write(6, "rank-0.log", b"first\nsecond\n")

    def run(self, *words: object) -> Done:
        """`zerotools WORDS --json`, in this process."""
        self.capsys.readouterr()
        status = run(build(), [*map(str, words), "--json"])
        return Done(status, *self.capsys.readouterr())

    def ask(self, command: str, *words: object) -> Done:
        """The same of a command that asks the daemon."""
        return self.run(command, "--socket", self.socket, *words)

    def until_stopped(self, by: signal.Signals, *words: object) -> Done:
        """The same in a process of its own, which gets a signal once it has printed a line."""
        program = [sys.executable, "-m", "zerotools", *map(str, words), "--json"]
        pipe = subprocess.PIPE
        with Started(program, stdout=pipe, stderr=pipe, text=True) as process:
            assert process.stdout is not None
            assert process.stderr is not None
            line = process.stdout.readline()
            process.send_signal(by)
            rest = process.stdout.read()
            return Done(process.wait(30), line + rest, process.stderr.read())

    def job_file(self) -> Path:
        path = self.place / "job.toml"
        path.write_text(JOB_FILE)
        return path


def _damaged(shell: Shell) -> Path:
    path = copy(ZERO3, shell.place)
    next(path.rglob("*rank_1_*optim_states.pt")).unlink()
    return path


def _gather(shell: Shell) -> Done:
    SshDouble(shell.place, shell.monkeypatch)
    return shell.run("gather", *split(FOUR, shell.place, NODES), shell.place / "out")


def _apply(shell: Shell, *options: object) -> Done:
    shell.run("delta", ZERO3, ZERO3, shell.place / "d")
    return shell.run("apply", ZERO3, shell.place / "d", shell.place / "out", *options)


def _init(shell: Shell) -> Done:
    (shell.place / "tiny").mkdir()
    (shell.place / "tiny" / "config.json").write_text(json.dumps(config("llama", vocab_size=256)))
    (shell.place / "a.txt").write_text("text")
    shell.monkeypatch.chdir(shell.place)
    return shell.run("init", "--yes", *MACHINE)


def _restore(shell: Shell) -> Done:
    state, out = shell.place / "queue", shell.place / "copy.db"
    state.mkdir()
    fill(state).close()
    back_up_queue(state, out)
    return shell.run("restore", out, "--state-dir", state)


def _backup(shell: Shell) -> Done:
    fill(shell.place).close()
    return shell.run("backup", shell.place / "copy.db", "--state-dir", shell.place)


def _thin(shell: Shell) -> Done:
    path = copy_of("deepspeed-0.19.8/z2-bf16-w2", shell.place)
    return shell.run("thin", path, "--socket", shell.place / "nobody.sock")


def _maps(shell: Shell, *words: object) -> Done:
    written(shell.place)
    return shell.run("maps", *words, "--config", shell.place)


def _written(shell: Shell, *words: object) -> Done:
    """A command that writes, after its dry run."""
    dry = shell.run(*words, "--dry-run")
    assert json.loads(dry.out)["dry_run"] is True
    done = shell.run(*words)
    assert [*json.loads(dry.out)][:2] == [*json.loads(done.out)][:2]
    return done


def _submit_to_slurm(shell: Shell) -> Done:
    path, text = shell.job_file(), shell.place / "data" / "a.txt"
    text.parent.mkdir()
    text.write_text("text")
    path.write_text(f'output_dir = "{shell.place / "out"}"\n{JOB_FILE}')
    return shell.run("submit", path, "--slurm", "--no-daemon", "--dry-run")


Case = Callable[[Shell], Done]
CASES: Mapping[str, tuple[Case, ...]] = {
    "inspect": (
        lambda it: it.run("inspect", JOB),
        lambda it: it.run("inspect", JOB, "--stats"),
    ),
    "diff": (lambda it: it.run("diff", ZERO3, ZERO3),),
    "consolidate": (
        lambda it: _written(it, "consolidate", ZERO3, it.place / "out"),
        lambda it: it.run("consolidate", ZERO3, it.place / "out", "--dry-run"),
        lambda it: it.run("consolidate", ZERO3, it.place / "out", "--part", "1/2"),
    ),
    "reshard": (
        lambda it: _written(it, "reshard", ZERO3, it.place / "out", "--world-size", 3),
        lambda it: it.run("reshard", ZERO3, it.place / "out", "--world-size", 3, "--dry-run"),
        lambda it: it.run("reshard", ZERO3, it.place / "out", "--world-size", 3, "--part", "1/2"),
        lambda it: it.run("reshard", ZERO3, it.place / "out", "--world-size", 2),
    ),
    "convert": (
        lambda it: _written(it, "convert", ZERO3, it.place / "out", "--to", "torch"),
        lambda it: it.run("convert", ZERO3, it.place / "out", "--to", "torch", "--dry-run"),
        lambda it: it.run("convert", ZERO3, it.place / "out", "--to", "torch", "--part", "1/2"),
    ),
    "maps": (
        lambda it: it.run("maps", "list"),
        lambda it: _maps(it, "show", "llama"),
        lambda it: _maps(it, "check", "llama"),
    ),
    "verify": (
        lambda it: it.run("verify", ZERO3),
        lambda it: it.run("verify", _damaged(it), "--dry-run"),
    ),
    "serve": (lambda it: it.until_stopped(signal.SIGTERM, "serve", ZERO3),),
    "salvage": (lambda it: it.run("salvage", _damaged(it), it.place / "out"),),
    "thin": (_thin,),
    "delta": (
        lambda it: it.run("delta", ZERO3, FOUR, it.place / "d"),
        lambda it: it.run("delta", ZERO3, FOUR, it.place / "d", "--part", "1/2"),
    ),
    "apply": (_apply, lambda it: _apply(it, "--part", "1/2")),
    "gather": (_gather,),
    "init": (_init,),
    "estimate": (lambda it: it.run("estimate", "7B", *MACHINE),),
    "import": (lambda it: it.run("import", "--deepspeed", PLAIN),),
    "submit": (
        lambda it: it.ask("submit", it.job_file()),
        lambda it: it.ask("submit", it.job_file(), "--dry-run"),
        lambda it: it.ask("submit", it.job_file(), "--dry-run", "--show", 2),
        _submit_to_slurm,
        lambda it: it.ask("submit", it.job_file(), "--array", 2),
        lambda it: it.ask("submit", it.job_file(), "--array", 2, "--dry-run"),
    ),
    "queue": (lambda it: it.ask("queue"), lambda it: it.ask("queue", "--all", "--limit", 1)),
    "show": (lambda it: it.ask("show", 1),),
    "explain": (lambda it: it.ask("explain", 1),),
    "shares": (lambda it: it.ask("shares"),),
    "logs": (lambda it: it.ask("logs", 6),),
    "cancel": (lambda it: it.ask("cancel", 1), lambda it: it.ask("cancel", 6)),
    "priority": (lambda it: it.ask("priority", 1, 3),),
    "hold": (lambda it: it.ask("hold", 1), lambda it: it.ask("hold", 6)),
    "release": (lambda it: it.ask("release", 4), lambda it: it.ask("release", 5)),
    "edit": (lambda it: it.ask("edit", 1, "--set", "train.steps=80"),),
    "retry": (lambda it: it.ask("retry", 2),),
    "adopt": (lambda it: it.ask("adopt", ADOPTABLE),),
    "wait": (lambda it: it.ask("wait", 3),),
    "clean": (lambda it: it.ask("clean", "--dry-run"), lambda it: it.ask("clean", 2, "--yes")),
    "backup": (_backup,),
    "restore": (_restore,),
    "monitor": (
        lambda it: it.ask("monitor", "--once"),
        lambda it: it.ask("monitor", "--history", "1h"),
        lambda it: it.ask("monitor", "--peaks"),
    ),
    "top": (lambda it: it.ask("top"),),
    "web": (lambda it: it.ask("web"), lambda it: it.ask("web", "--end")),
    "drain": (lambda it: it.ask("drain"),),
    "undrain": (lambda it: it.ask("undrain"),),
    "notify": (lambda it: it.ask("notify", "test", "--place", "lab"),),
    "doctor": (lambda it: it.ask("doctor", "--python", "/bin/false"),),
    "chaos": (lambda it: it.run("chaos", "--minutes", "0.1", "--every", "6", "--jobs", "1"),),
    "help": (lambda it: it.run("help"), lambda it: it.run("help", "install")),
}
"""Runs that answer without an error, whatever the exit status says of what they found."""

LINES = ("logs", "serve")
"""Commands that print each object on a line of its own, as `monitor` without --once."""
