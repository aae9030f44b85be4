"""The command in this process: what it prints, its exit status, and what it leaves."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from harness.started import Started
from harness.started import run as run_process
from tests.cli.conftest import Done
from tests.golden_files import DEEPSPEED
from tests.io.ssh.double import SshDouble
from tests.ops.gathering.nodes import content, made_node, split
from zerotools.cli.main import build, run
from zerotools.io.ssh.remote_shell import BLOCK

ROOT = Path(__file__).resolve().parents[3]
ZERO3 = DEEPSPEED / "z3-bf16-w4" / "checkpoint"
NODES = {"n1": ("*_rank_[01]_*", "latest"), "n2": ("*_rank_[23]_*", "latest")}


class Nodes:
    """Two nodes with two ranks each, and the command."""

    def __init__(self, ssh: SshDouble, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.ssh = ssh
        self.sources = split(ZERO3, tmp_path, NODES)
        self.out = tmp_path / "out"
        self.partial = tmp_path / "out.partial"
        self._capsys = capsys

    def gather(self, *options: str) -> Done:
        return self.run(*self.sources, str(self.out), *options)

    def run(self, *arguments: str) -> Done:
        self._capsys.readouterr()
        status = run(build(), ["gather", *arguments])
        return Done(status, *self._capsys.readouterr())

    def file(self, node: int, pattern: str) -> Path:
        return next(Path(self.sources[node].partition(":")[2]).rglob(pattern))


@pytest.fixture
def nodes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Nodes:
    return Nodes(SshDouble(tmp_path, monkeypatch), tmp_path, capsys)


def test_files_and_bytes_by_node(nodes: Nodes) -> None:
    done = nodes.gather()
    assert (done.status, done.err) == (0, "")
    lines = done.out.splitlines()
    assert lines[0].split() == ["SOURCE", "FILES", "SIZE", "FETCHED", "SIZE"]
    assert lines[1].split() == [nodes.sources[0], "5", "26.9", "KiB", "5", "26.9", "KiB"]
    assert lines[2].split() == [nodes.sources[1], "5", "26.9", "KiB", "4", "26.9", "KiB"]
    assert lines[3] == f"made {nodes.out}: 53.8 KiB in 9 files; it is whole"
    assert content(nodes.out) == content(ZERO3)
    assert run(build(), ["inspect", str(nodes.out)]) == 0
    again = nodes.gather()
    assert again.status == 2
    assert again.err.splitlines()[0] == f"error: {nodes.out} exists"


def test_a_dry_run_says_what_comes_from_where(nodes: Nodes) -> None:
    nodes.file(1, "*_rank_2_*optim*").unlink()
    done = nodes.gather("--dry-run")
    assert done.status == 0
    lines = done.out.splitlines()
    assert lines[0] == f"would make {nodes.out}: 47.8 KiB in 8 files"
    begin = lines.index(f"from {nodes.sources[1]}:")
    assert lines[begin + 1] == (
        "  global_step2/bf16_zero_pp_rank_3_mp_rank_00_optim_states.pt  6.0 KiB"
    )
    assert (
        "note: according to the numbers in the file names, no source has global_step2/" in done.err
    )
    assert not nodes.partial.exists()


def test_a_missing_rank_is_named_with_what_each_node_has(nodes: Nodes, tmp_path: Path) -> None:
    lost = nodes.file(1, "*_rank_3_*optim*")
    third = tmp_path / "n3" / "run" / "global_step2"
    third.mkdir(parents=True)
    shutil.move(lost, third)
    done = nodes.gather()
    assert done.status == 3
    lines = done.out.splitlines()
    begin = lines.index(f"missing: global_step2/{lost.name}")
    assert lines[begin + 1 : begin + 3] == [
        f"  {nodes.sources[0]} has those with the numbers 0-1",
        f"  {nodes.sources[1]} has those with the numbers 2",
    ]
    assert f"NOT WHOLE: {nodes.partial}: " in done.out
    assert done.err.splitlines() == [
        f"error: {nodes.out} was not made: the checkpoint in {nodes.partial} is incomplete",
        "hint: run the command again with the node that has the missing files, or with --force to "
        "continue without them",
    ]
    nodes.sources.append(f"n3:{third.parent}")
    done = nodes.gather()
    assert done.status == 0
    assert "8 files already complete" in done.out
    assert content(nodes.out) == content(ZERO3)


def test_with_force_salvage_can_have_it(nodes: Nodes, tmp_path: Path) -> None:
    nodes.file(1, "*_rank_3_*optim*").unlink()
    done = nodes.gather("--force", "--fast")
    assert done.status == 0
    assert done.out.splitlines()[-1] == f"made {nodes.out}: 47.8 KiB in 8 files"
    assert run(build(), ["salvage", str(nodes.out), str(tmp_path / "left")]) == 1


def test_the_page_shows_what_is_printed(nodes: Nodes) -> None:
    page = (ROOT / "docs/how-to/gather-a-checkpoint.md").read_text()
    whole, *_, lost = re.findall(r"^```(?:console)?\n(.*?)^```", page, re.MULTILINE | re.DOTALL)

    def real(block: str) -> list[list[str]]:
        for node, source in zip(("node1", "node2"), nodes.sources, strict=True):
            block = block.replace(f"{node}:/local/run", source)
        block = block.replace("/data/whole.partial", str(nodes.partial))
        return [line.replace("whole ", f"{nodes.out} ").split() for line in block.splitlines()]

    done = nodes.gather()
    shown = [line for line in real(whole) if line[0] != "$"]
    assert [line.split() for line in done.out.splitlines()] == [
        [word.replace("whole:", f"{nodes.out}:") for word in line] for line in shown
    ]
    shutil.rmtree(nodes.out)
    nodes.file(1, "*_rank_3_*optim*").unlink()
    done = nodes.gather()
    printed = [line.split() for line in [*done.out.splitlines(), *done.err.splitlines()]]
    assert [line for line in real(lost) if line not in printed] == []
    nodes.file(1, "*_rank_2_*optim*").rename(nodes.file(0, "*_rank_0_*").with_name("x"))
    shutil.copy(next(ZERO3.rglob("*_rank_3_*optim*")), nodes.file(1, "*_rank_2_*").parent)
    assert "no source has global_step2/bf16_zero_pp_rank_2_" in nodes.gather("--dry-run").err


def test_fast_says_what_it_left_out(nodes: Nodes) -> None:
    last = nodes.gather("--fast").out.splitlines()[-1]
    assert last.endswith("; its structure has no problems, but its bytes were not checked (--fast)")


def test_a_password_is_an_error_in_one_sentence(nodes: Nodes) -> None:
    nodes.ssh.fails("ada@n2: Permission denied (publickey,password).\n", "n2")
    done = nodes.gather()
    assert done.status == 5
    assert done.err.splitlines()[0].startswith(
        "error: n2 cannot be reached by ssh: ada@n2: Permission denied (publickey,password); ssh "
        "needs a password"
    )
    assert all("BatchMode=yes" in call for call in nodes.ssh.calls if call != "over")


def test_a_host_that_is_an_option(nodes: Nodes) -> None:
    done = nodes.run("--", "-oProxyCommand=touch x:/run", str(nodes.out))
    assert done.status == 2
    assert "a host cannot begin with -" in done.err


def test_a_node_that_goes_away_is_named_and_the_rest_is_kept(nodes: Nodes, tmp_path: Path) -> None:
    nodes.sources.append(made_node(tmp_path, "n3", {"global_step2/big": bytes(3 * BLOCK)}))
    nodes.ssh.breaks("n3", 2 * BLOCK)
    done = nodes.gather()
    assert done.status == 5
    assert done.err.splitlines() == [
        f"note: {nodes.partial} is kept; run the same command to continue",
        "error: n3 went away: Connection to n3 closed by remote host",
        "hint: run the same command again when it is reachable",
    ]
    assert len(content(nodes.partial)) == 9 + 2  # those of the others, the one begun, the journal


def test_links_and_a_missing_sha256sum_are_said(nodes: Nodes) -> None:
    link = nodes.file(0, "latest").with_name("newest")
    link.symlink_to("global_step2")
    names = ("sh", "find", "head", "dd", "stat")
    nodes.ssh.has_programs("n2", [Path("/bin") / each for each in names])
    done = nodes.gather()
    assert done.status == 0
    assert done.err.splitlines() == [
        f"note: {nodes.sources[0]}: links and special files are left out: newest",
        (
            f"note: {nodes.sources[1]}: that node has no sha256sum, so only sizes and times of "
            "the files are compared"
        ),
    ]


def test_a_disk_that_takes_no_more_keeps_what_is_there(nodes: Nodes, tmp_path: Path) -> None:
    """A file may have 64 KiB: the system refuses the rest, as it does on a full disk."""
    source = made_node(tmp_path, "n3", {"global_step2/big": bytes(3 * BLOCK)})
    command = ["zerotools", "gather", *nodes.sources, source, str(nodes.out)]
    limited = ["sh", "-c", 'ulimit -f 128; exec "$@"', "sh", sys.executable, "-m", *command]
    done = run_process(limited, timeout=60, capture_output=True, text=True)
    assert done.returncode == 71
    assert f"note: {nodes.partial} is kept; run the same command to continue" in done.stderr
    assert "error: File too large" in done.stderr
    again = nodes.run(*nodes.sources, source, str(nodes.out))
    assert again.status == 0
    assert "9 files already complete" in again.out


def test_ctrl_c_leaves_what_the_next_run_goes_on_with(nodes: Nodes, tmp_path: Path) -> None:
    source = made_node(tmp_path, "n3", {"global_step2/big": bytes(12 * BLOCK)})
    pipe = nodes.ssh.stalls("n3", 9 * BLOCK)
    command = [sys.executable, "-m", "zerotools", "gather", *nodes.sources, source, str(nodes.out)]
    with Started(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stderr is not None
        with pipe.open() as told:
            assert told.read() == "stalled\n"
        process.send_signal(signal.SIGINT)
        said = process.stderr.read().decode()
        assert process.wait(30) == 130
    assert said == f"note: {nodes.partial} is kept; run the same command to continue\n"
    assert (nodes.partial / "global_step2" / "big").stat().st_size > 0
    nodes.ssh.breaks("n3", None)
    done = nodes.run(*nodes.sources, source, str(nodes.out), "--json")
    assert done.status == 0
    assert "global_step2/big" in {
        each["name"] for each in json.loads(done.out)["sources"][2]["fetch"]
    }
    assert content(nodes.out) == content(ZERO3) | {"global_step2/big": bytes(12 * BLOCK)}
