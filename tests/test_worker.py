"""The helper for programs of users: what it sends and writes, and that it never gets in the way."""

from __future__ import annotations

import ast
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import chdir, contextmanager
from pathlib import Path
from typing import Any

import pytest

import zerotools
from tests.docs.tutorials import blocks
from zerotools import worker
from zerotools.worker import Worker

PACKAGE = Path(zerotools.__file__).parent


@pytest.fixture
def receiver(tmp_path: Path) -> Iterator[socket.socket]:
    (tmp_path / "spec.json").write_text(json.dumps({"output_dir": str(tmp_path / "out")}))
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as bound:
        bound.bind(str(tmp_path / "notify.sock"))
        bound.settimeout(0.0)
        yield bound


@contextmanager
def in_job(run_dir: Path, **more: str) -> Iterator[Worker]:
    address = str(run_dir / "notify.sock")
    one = Worker({"ZEROTOOLS_RUN_DIR": str(run_dir), "ZEROTOOLS_NOTIFY": address, **more})
    yield one
    one.close()


def received(receiver: socket.socket) -> list[dict[str, Any]]:
    found = []
    while True:
        try:
            found.append(json.loads(receiver.recv(65536)))
        except BlockingIOError:
            return found


class Tensor:
    def __init__(self, *, has_gradients: bool = True) -> None:
        self.has_gradients = has_gradients

    def detach(self) -> Tensor:
        return Tensor(has_gradients=False)

    def __float__(self) -> float:
        assert not self.has_gradients, "torch would warn"
        return 0.25


def test_a_step_is_told_and_written(receiver: socket.socket, tmp_path: Path) -> None:
    tree = {"output_dir": str(tmp_path / "out"), "metrics": {"jsonl": True, "of_later": "x"}}
    (tmp_path / "spec.json").write_text(json.dumps(tree))
    with in_job(tmp_path) as one:
        one.report(1, steps=9, loss=Tensor(), tokens=100, mood=["fine"], rank="shadow")
        one.report(2, steps=9, loss=float("nan"), tokens=100)
    first, second = received(receiver)
    assert (first["event"], first["rank"], first["step"], first["phase"]) == ("step", 0, 1, "train")
    assert (first["loss"], first["mood"]) == (0.25, "['fine']")
    assert "tokens_per_second" not in first
    assert second["tokens_per_second"] > 0
    assert second["seconds_left"] == pytest.approx(7 * second["step_seconds"])
    lines = [json.loads(x) for x in (tmp_path / "out" / "metrics.jsonl").read_text().splitlines()]
    assert [(line["step"], line["loss"]) for line in lines] == [(1, 0.25), (2, None)]


def test_more_metrics_than_fit_into_a_datagram_are_written_all_the_same(
    receiver: socket.socket, tmp_path: Path
) -> None:
    many = {f"metric_{number}": 1.0 for number in range(500)}
    with in_job(tmp_path) as one:
        one.report(1, loss=2.0, **many)
    (only,) = received(receiver)
    assert only["loss"] == 2.0
    assert "metric_0" not in only
    assert "metric_499" in (tmp_path / "out" / "metrics.jsonl").read_text()


def test_other_ranks_say_only_that_they_live(receiver: socket.socket, tmp_path: Path) -> None:
    with in_job(tmp_path, RANK="3") as one:
        one.report(5, loss=1.0)
        one.checkpoint_written("x")
        one.finished()
    (only,) = received(receiver)
    assert (only["rank"], only["step"], only.get("event")) == (3, 5, None)
    assert not (tmp_path / "out").exists()


def test_a_checkpoint_is_told_with_its_absolute_path(
    receiver: socket.socket, tmp_path: Path
) -> None:
    with in_job(tmp_path) as one:
        one.report(5)
        one.checkpoint_written("last.pt")
        one.checkpoint_written(Path("/a/b"), 3)
    _, first, second = received(receiver)
    assert (first["event"], first["step"]) == ("checkpoint", 5)
    assert first["path"] == str(Path.cwd() / "last.pt")
    assert (second["path"], second["step"]) == ("/a/b", 3)


def test_the_end_of_the_job_is_reported(receiver: socket.socket, tmp_path: Path) -> None:
    with in_job(tmp_path) as one:
        one.finished()
    (only,) = received(receiver)
    assert (only["event"], only["phase"]) == ("finished", "done")


def test_a_stop_is_heard_by_file_and_by_signal(tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGTERM)
    try:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        with in_job(tmp_path) as one:
            assert not one.should_stop()
            os.kill(os.getpid(), signal.SIGTERM)
            assert one.should_stop()
    finally:
        signal.signal(signal.SIGTERM, before)
    (tmp_path / "stop").touch()
    with in_job(tmp_path) as one:
        assert one.should_stop()


LATE = """
import os, sys
from zerotools import worker

class Last:
    def __init__(self):
        self.kill, self.me = os.kill, os.getpid()

    def __del__(self):
        self.kill(self.me, 15)

last = Last()  # deleted when the interpreter ends, after it has restored its signals
assert worker.should_stop() is False
"""
OWN = LATE + "import signal; signal.signal(15, lambda *_: None)"


@pytest.mark.parametrize(("program", "status"), [(LATE, 0), (OWN, -signal.SIGTERM)])
def test_a_signal_while_the_interpreter_ends_is_no_failure(
    program: str, status: int, tmp_path: Path
) -> None:
    """A handler of the program stays as it is."""
    env = {**os.environ, "ZEROTOOLS_RUN_DIR": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", program], env=env, check=False)
    assert done.returncode == status


def test_outside_of_a_job_nothing_happens(tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGTERM)
    with chdir(tmp_path):
        one = Worker({})
        one.report(1, loss=1.0)
        one.phase("eval")
        one.checkpoint_written("x")
        one.finished()
        assert (one.should_stop(), one.resume_from()) == (False, None)
    assert signal.getsignal(signal.SIGTERM) is before
    assert not list(tmp_path.iterdir())


def test_an_evaluation_is_told_and_written(receiver: socket.socket, tmp_path: Path) -> None:
    """Several calls for one step are one evaluation, as of several data sets."""
    with in_job(tmp_path) as one:
        one.report(4, loss=1.0)
        one.report_evaluation(4, loss=Tensor(), rank="shadow")
        one.report_evaluation(4, accuracy=0.5)
        one.report_evaluation(8, loss=0.125)
    told = [each for each in received(receiver) if each["event"] == "eval"]
    assert [each["step"] for each in told] == [4, 4, 8]
    assert [each.get("loss") for each in told] == [0.25, 0.25, 0.125]
    assert [each.get("accuracy") for each in told] == [None, 0.5, None]
    lines = [json.loads(x) for x in (tmp_path / "out" / "metrics.jsonl").read_text().splitlines()]
    assert [(each.get("eval_loss"), each.get("eval_accuracy")) for each in lines] == [
        (None, None),
        (0.25, None),
        (None, 0.5),
        (0.125, None),
    ]


def test_a_step_without_a_loss_has_the_last_one(receiver: socket.socket, tmp_path: Path) -> None:
    with in_job(tmp_path) as one:
        one.report(1)
        one.report(2, loss=3.0)
        one.report(3)
    told = received(receiver)
    assert [(each.get("loss"), each.get("last_loss")) for each in told] == [
        (None, None),
        (3.0, None),
        (None, 3.0),
    ]
    assert "last_loss" not in (tmp_path / "out" / "metrics.jsonl").read_text()


@pytest.mark.parametrize("phase", ["load", "eval", "save"])
def test_a_step_ends_every_other_phase(receiver: socket.socket, tmp_path: Path, phase: str) -> None:
    with in_job(tmp_path) as one:
        one.phase(phase)
        one.report(1)
    assert [each["phase"] for each in received(receiver)] == [phase, "train"]


LOOP = """
from pathlib import Path

steps, lr, tokens_per_step, done = 9, 0.1, 8, []

def train_one_step():
    done.append(0.5)
    if len(done) == 2:
        Path({stop!r}).touch()
    return done[-1]

save = print
"""


def test_the_loop_of_the_documents_saves_and_stops(receiver: socket.socket, tmp_path: Path) -> None:
    page = (PACKAGE.parent / "docs/how-to/run-your-own-script.md").read_text("utf-8")
    (loop,) = (block.text for block in blocks(page) if "train_one_step" in block.text)
    program = LOOP.format(stop=str(tmp_path / "stop")) + loop
    places = {"ZEROTOOLS_RUN_DIR": tmp_path, "ZEROTOOLS_NOTIFY": tmp_path / "notify.sock"}
    saved = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, **{name: str(place) for name, place in places.items()}},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    ).stdout
    assert saved.split() == ["output/step-2.pt"]
    assert [each["event"] for each in received(receiver)] == ["step", "step", "checkpoint"]


def test_what_goes_wrong_is_said_and_not_raised(capsys: pytest.CaptureFixture[str]) -> None:
    worker.report("no number")  # type: ignore[arg-type]  # outside of a job nothing looks at it
    guarded = worker.never_raises(lambda: 1 // 0)
    assert guarded() is None
    assert "zerotools.worker: ZeroDivisionError" in capsys.readouterr().err


PROGRAM = """
import sys
sys.path.insert(0, sys.argv[1])
from zerotools import worker
worker.report(1, steps=2, loss=0.5)
assert not worker.should_stop()
strange = [m for m in sys.modules if m.partition(".")[0] not in sys.stdlib_module_names
           and not m.startswith(("zerotools", "__main__"))]
print(strange, worker.resume_from())
"""


def test_it_needs_the_standard_library_alone(tmp_path: Path) -> None:
    (tmp_path / "zerotools").symlink_to(PACKAGE)
    (tmp_path / "spec.json").write_text(json.dumps({"output_dir": str(tmp_path / "out")}))
    command = [sys.executable, "-I", "-S", "-c", PROGRAM, str(tmp_path)]
    env = {"ZEROTOOLS_RUN_DIR": str(tmp_path), "ZEROTOOLS_RESUME_FROM": "/x/y"}
    done = subprocess.run(command, capture_output=True, text=True, env=env, check=True)
    assert (done.stdout.strip(), done.stderr) == ("[] /x/y", "")
    assert (tmp_path / "out" / "metrics.jsonl").exists()


def test_it_is_written_for_interpreters_that_zerotools_itself_is_not_for() -> None:
    modules = {Path(str(m.__file__)) for n, m in sys.modules.items() if n in _IMPORTED}
    assert len(modules) == len(_IMPORTED)
    for path in modules:
        ast.parse(path.read_text(), feature_version=(3, 9))


_IMPORTED = (
    "zerotools",
    "zerotools.core.step_timer",
    "zerotools.io.telemetry.datagram_sender",
    "zerotools.io.telemetry.step_metrics_files",
    "zerotools.worker",
)


def test_a_path_that_is_no_utf_8_is_told(receiver: socket.socket, tmp_path: Path) -> None:
    path = os.fsdecode(os.fsencode(tmp_path) + b"/\xff.pt")
    with in_job(tmp_path) as one:
        one.checkpoint_written(path, 3)
    (only,) = received(receiver)
    assert only["path"] == path
