"""The command in a real terminal, over the real API with a service in memory and, where there is a
C compiler, over a double of NVML."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from harness.started import run as run_program
from tests.cli.conftest import Command
from tests.cli.top.real_terminal import ROOT, RealTerminal
from tests.daemon.http.api.fakes import FakeService
from tests.daemon.http.api.made_views import STEP, a_job, a_view, an_attempt
from tests.daemon.waiting import wait_for
from tests.sensors.conftest import NEWEST, compiled
from zerotools.core.errors import EXIT_INTERRUPTED
from zerotools.jobs.client.daemon_client import DaemonClient

LEFT = b"\x1b[?1049l"
WHITE = {b"\x1b]11;?": b"\x1b]11;rgb:ffff/ffff/ffff\x1b\\"}
BLACK = {b"\x1b]11;?": b"\x1b]11;rgb:0000/0000/0000\x1b\\"}
Open = Callable[..., RealTerminal]


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Open]:
    """`zerotools top` in a terminal; ended with the test."""
    opened: list[RealTerminal] = []

    def open_one(
        *arguments: str,
        socket: Path | None = None,
        size: tuple[int, int] = (80, 24),
        answers: dict[bytes, bytes] | None = None,
        **environment: str,
    ) -> RealTerminal:
        path = socket or tmp_path / "no.sock"
        command = ["-m", "zerotools", "top", "--socket", str(path), "--interval", "0.5", *arguments]
        opened.append(RealTerminal(command, environment, size, answers))
        return opened[-1]

    yield open_one
    for each in opened:
        each.process.end()


@pytest.fixture(scope="module")
def eight_gpus(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of a machine with eight GPUs."""
    directory = tmp_path_factory.mktemp("nvml")
    state = directory / "state"
    lines = [f"gpu GPU-fake-{n} 81559 {72100 if n < 4 else 600} 0" for n in range(8)]
    lines += [f"hold {n} {os.getpid()} 71300" for n in range(4)]
    lines += [
        "runs 0 98 71 688 1710",
        "slow 0 4",
        "runs 1 97 84 690 1410",
        "slow 1 20",
        "ecc 2 0 3",
    ]
    state.write_text("\n".join(lines) + "\n")
    return {"LD_LIBRARY_PATH": str(compiled(directory, NEWEST)), "NVML_DOUBLE": str(state)}


def five_jobs(service: FakeService) -> None:
    now = time.time()
    gpus = tuple(f"GPU-fake-{n}" for n in range(4))
    runs = (an_attempt(gpu_uuids=gpus),)
    usual = {"uid": os.getuid(), "reason": None}
    service.views = {
        3: a_view(3, a_job(name="llama"), state="running", attempts=runs, progress=STEP, **usual),
        4: a_view(4, a_job(name="lora"), state="queued", uid=1, reason="needs 2 GPUs"),
        5: a_view(5, a_job(name="数据清洗-长名字的任务"), state="queued", uid=1),
        6: a_view(6, a_job(name="eval"), state="failed", ended=now, uid=1, reason="rank 1: no"),
        7: a_view(7, a_job(name="done"), state="succeeded", ended=now, **usual),
    }
    service.leases = [
        {"gpu_uuid": uuid, "job_id": 3, "attempt": 1, "uid": os.getuid()} for uuid in gpus
    ]
    service.write(3, "rank-0.log", b"a line of the log\n")


def test_eight_gpus_and_five_jobs_on_80x24(
    terminal: Open, service: FakeService, client: DaemonClient, eight_gpus: dict[str, str]
) -> None:
    five_jobs(service)
    shown = terminal(socket=client.socket, **eight_gpus)
    shown.wait_for("a line of the log")
    lines = shown.lines
    assert [line[:3] for line in lines[:8]] == [f" {n} " for n in range(8)]
    assert "70.4/80G █  98%  71° 688/700W 1710MHz▼  job 3 (llama)" in lines[0]
    assert "1410MHz▼  hot job 3" in lines[1]
    assert "ECC 3!" in lines[2]
    assert lines[7].endswith("free")
    assert lines[8].startswith("CPU ")
    assert lines[11].startswith("▸   3 llama")
    assert [line.split()[0] for line in lines[12:16]] == ["4", "5", "6", "7"]
    assert lines[16].startswith("── job 3 (llama) ")
    assert lines[23].startswith("? help")
    assert shown.is_cursor_hidden
    # It follows the size of the window, down to where nothing can be shown, and back.
    shown.resize(200, 60)
    shown.wait_for("zerotools top")
    assert len(shown.lines) == 60
    for size in ((30, 5), (1, 1), (199, 50), (80, 24)) * 3:
        shown.resize(*size)
    shown.wait_until(lambda: shown.lines[23].startswith("? help"), "80x24 again")
    shown.resize(30, 5)
    shown.wait_for("30x5 is too small")
    shown.resize(80, 24)
    shown.wait_until(lambda: shown.lines[23].startswith("? help"), "80x24 again")
    shown.type("q")
    assert shown.end() == 0


def leaves_the_terminal_as_it_was(shown: RealTerminal) -> bool:
    """The alternate screen is left, the cursor shown, and the modes are those before."""
    after = shown.written[shown.written.rindex(LEFT) :]
    off = (b"\x1b[?1000l", b"\x1b[?1003l", b"\x1b[?2004l", b"\x1b[?1004l", b"\x1b[<u")
    return (
        shown.is_restored
        and b"\x1b[?1049h" not in after
        and b"\x1b[?25h" in after
        and all(shown.written.rindex(each) > shown.written.rindex(b"\x1b[?1049h") for each in off)
    )


@pytest.mark.full
def test_sigterm_leaves_the_terminal_as_it_was(terminal: Open) -> None:
    shown = terminal()
    shown.wait_for("no daemon answers")
    shown.process.send_signal(signal.SIGTERM)
    assert shown.end() == 128 + signal.SIGTERM
    assert leaves_the_terminal_as_it_was(shown)


def test_it_is_stopped_and_goes_on(terminal: Open) -> None:
    """By Ctrl-Z, as a shell lets it. Then an answer of the terminal comes late and is no keys: the
    slash in it would begin a filter, into which the q goes."""
    shown = terminal()
    shown.wait_for("no daemon answers")
    first = shown.lines[0]
    shown.type("\x1a")
    process = psutil.Process(shown.process.pid)
    shown.wait_until(lambda: process.status() == psutil.STATUS_STOPPED, "that it is stopped")
    shown.wait_until(lambda: LEFT in shown.written, "that the screen is left")
    assert shown.has_modes_of_before
    assert shown.written.rindex(LEFT) > shown.written.rindex(b"\x1b[?1049h")
    shown.clear()
    shown.process.send_signal(signal.SIGCONT)
    shown.wait_until(lambda: shown.lines[0] == first, "the first line, which has not changed")
    shown.type(BLACK[b"\x1b]11;?"].decode())
    shown.type("q")
    assert shown.end() == 0
    assert leaves_the_terminal_as_it_was(shown)


def test_after_a_defect_too_and_it_is_said_in_a_sentence() -> None:
    shown = RealTerminal(["-m", "tests.cli.top.broken_top"], {})
    shown.wait_for("job 3 (tiny)")
    shown.type("l")
    assert shown.end() == 70
    assert leaves_the_terminal_as_it_was(shown)
    after = shown.written[shown.written.rindex(LEFT) :]
    assert b"ended: ValueError('a defect of the reader')" in after
    assert b"Traceback" not in after


def test_without_nvml_the_host_is_shown_and_why(terminal: Open) -> None:
    """Ctrl-C leaves the terminal as it was."""
    shown = terminal(NO_COLOR="1")
    shown.wait_for("no daemon answers")
    assert shown.lines[0].startswith("zerotools top ")
    assert any(line.startswith("GPUs  ") for line in shown.lines)
    assert "RAM " in shown.text
    # NO_COLOR: bold, dim and reversed text alone.
    shown.type("?")
    shown.wait_for("follow its log")
    shown.type("q\x03")
    assert shown.end() == EXIT_INTERRUPTED
    assert leaves_the_terminal_as_it_was(shown)
    assert shown.colours == set()


@pytest.mark.parametrize(
    ("answers", "colours"),
    [
        (WHITE, {38}),
        (None, set(range(30, 38))),
        pytest.param(BLACK, set(range(30, 38)), marks=pytest.mark.full),
    ],
)
def test_colours_are_those_for_the_background(
    answers: dict[bytes, bytes] | None, colours: set[int], terminal: Open
) -> None:
    """On light, of the palette of 256; else the terminal's own. An empty NO_COLOR is none.

    In the locale C, lines are drawn as in others.
    """
    shown = terminal(answers=answers, NO_COLOR="", LC_ALL="C", LANG="C")
    shown.wait_for("no daemon answers")
    assert "╌" in shown.text
    shown.type("q")
    shown.end()
    assert shown.colours
    assert shown.colours <= colours


@pytest.mark.parametrize(
    "environment",
    [
        pytest.param({"PYTHONIOENCODING": "latin-1"}, id="latin-1", marks=pytest.mark.full),
        pytest.param({"TERM": "linux"}, id="console"),
    ],
)
def test_where_blocks_cannot_be_shown_there_are_letters(
    environment: dict[str, str], terminal: Open, service: FakeService, client: DaemonClient
) -> None:
    five_jobs(service)
    shown = terminal(socket=client.socket, size=(110, 40), **environment)
    shown.wait_for("a line of the log")
    shown.type("q")
    shown.end()
    assert shown.written.isascii()
    assert b"\\u" not in shown.written


def test_a_daemon_that_goes_away_and_comes_back(
    terminal: Open, service: FakeService, client: DaemonClient, tmp_path: Path
) -> None:
    """The way to it goes: a server that ended might leave the answer of that moment half sent."""
    five_jobs(service)
    way = tmp_path / "way"
    way.symlink_to(client.socket.parent)
    shown = terminal(socket=way / client.socket.name)
    shown.wait_for("a line of the log")
    way.unlink()
    shown.wait_for("no daemon answers")
    assert "llama" in shown.text
    shown.type("c")
    shown.wait_for("Cancel job 3 (llama)?")
    shown.type("y")
    shown.wait_for("nothing answers at")
    service.change(4, state="on_hold")
    way.symlink_to(client.socket.parent)
    shown.wait_for("held")
    assert "no daemon answers" not in shown.text
    shown.type("q")
    assert shown.end() == 0


def test_what_is_no_full_screen_is_refused(terminal: Open, zerotools: Command) -> None:
    narrow = terminal(size=(40, 24))
    assert narrow.end() == 2
    assert "this terminal has 40 columns, and zerotools top needs 60" in " ".join(
        map(str.strip, narrow.lines)
    )
    dumb = terminal(TERM="dumb")
    assert dumb.end() == 2
    assert "TERM=dumb" in dumb.text
    piped = zerotools("top")
    assert piped.status == 2
    assert "needs a terminal, and standard input is not a terminal" in piped.err


def test_json_is_one_reading(zerotools: Command) -> None:
    assert '"host"' in zerotools("top", "--json").out


@pytest.mark.skipif(shutil.which("tmux") is None, reason="needs tmux")
def test_in_tmux(tmp_path: Path, service: FakeService, client: DaemonClient) -> None:
    """A terminal of other people's: what was on it is there again afterwards."""
    five_jobs(service)
    own = ["tmux", "-f", os.devnull, "-S", str(tmp_path / "tmux")]
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'daemon'}", "TERM": "xterm"}
    top = f"{sys.executable} -m zerotools top --socket {client.socket} --interval 0.5"
    shell = f"echo before; {top}; echo status $?; read wait"

    def tmux(*arguments: str) -> str:
        done = run_program(
            [*own, *arguments], timeout=30, check=True, capture_output=True, env=environment
        )
        return bytes(done.stdout).decode()

    def screen() -> str:
        return tmux("capture-pane", "-p")

    tmux("new-session", "-d", "-x", "80", "-y", "24", shell, ";", "set", "-g", "status", "off")
    try:
        tmux("resize-window", "-x", "80", "-y", "24")
        wait_for(lambda: "a line of the log" in screen() or None, "the screen")
        lines = screen().split("\n")
        assert sum(line.startswith("── job 3 (llama)") for line in lines) == 1
        assert lines[23].startswith("? help")
        assert "before" not in lines
        tmux("send-keys", "q")
        wait_for(lambda: "status 0" in screen() or None, "its end")
        assert screen().split("\n")[:2] == ["before", "status 0"]
        assert tmux("display", "-p", "#{cursor_flag}").strip() == "1"
    finally:
        subprocess.run([*own, "kill-server"], check=False, capture_output=True)
