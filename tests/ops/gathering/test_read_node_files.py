from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.io.ssh.double import SshDouble
from zerotools.core.errors import BadRequest
from zerotools.io.ssh.remote_shell import OpenShells
from zerotools.ops.gathering.node_directory import parse_source
from zerotools.ops.gathering.read_node_files import CLOSED, Listing, list_source, listing_script

ODD = ["a b", "it's", 'say "no"', "two\nlines", "$(id)", "-rf", "sub/x/y", " ", "é", "*"]


def listed(text: str) -> Listing:
    return list_source(parse_source(text), OpenShells())


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A directory with an odd name, with files that have odd names."""
    directory = tmp_path / "it's $(a run)\n"
    for number, name in enumerate(ODD):
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x" * number)
    (directory / os.fsdecode(b"\xff")).touch()
    return directory


def programs(*names: str) -> list[Path]:
    return [Path(found) for name in names if (found := shutil.which(name))]


def without_printf(directory: Path) -> Path:
    """A `find` as of busybox, which has no -printf."""
    path = directory / "find"
    real = shutil.which("find")
    path.write_text(f'#!/bin/sh\ncase "$*" in *-printf*) exit 1 ;; esac\nexec {real} "$@"\n')
    path.chmod(0o755)
    return path


@pytest.mark.parametrize("kind", ["local", "gnu", "busybox"])
def test_names_and_sizes(ssh: SshDouble, run: Path, tmp_path: Path, kind: str) -> None:
    if kind == "busybox":
        ssh.has_programs("box", [*programs("sh", "stat"), without_printf(tmp_path)])
    found = listed(str(run) if kind == "local" else f"box:{run}")
    expected = {name: number for number, name in enumerate(ODD)} | {os.fsdecode(b"\xff"): 0}
    assert {name: file.size for name, file in found.files.items()} == expected
    assert found.left_out == ()
    assert found.makes_digests is (kind != "busybox")


def test_a_directory_in_a_closed_one_is_not_called_absent(tmp_path: Path) -> None:
    (tmp_path / "closed").mkdir(mode=0)
    script = listing_script(f"{tmp_path}/closed/run/", "end")
    user = 65534 if os.geteuid() == 0 else None  # root enters every directory
    found = subprocess.run(["sh", "-c", script], stdout=subprocess.PIPE, cwd="/", user=user)
    assert found.stdout == f"{CLOSED}\0".encode()


def test_a_relative_path_begins_at_the_home(ssh: SshDouble, run: Path) -> None:
    ssh.lives_in("box", run)
    assert set(listed("box:sub").files) == {"x/y"}
    assert set(listed("box:~/sub").files) == {"x/y"}


@pytest.mark.parametrize("kind", ["gnu", "busybox"])
def test_links_and_pipes_are_left_out(ssh: SshDouble, tmp_path: Path, kind: str) -> None:
    run = tmp_path / "run"
    run.mkdir()
    (run / "file").write_text("x")
    (run / "link").symlink_to(run / "file")
    (run / "out").symlink_to("/etc")
    (run / "gone").symlink_to("nowhere")
    os.mkfifo(run / "pipe")
    (run / ".zerotools-journal").touch()
    if kind == "busybox":
        ssh.has_programs("box", [*programs("sh", "stat"), without_printf(tmp_path)])
    found = listed(f"box:{run}")
    assert set(found.files) == {"file"}
    assert set(found.left_out) == {"link", "out", "gone", "pipe", ".zerotools-journal"}


def test_the_directory_itself_may_be_a_link(ssh: SshDouble, run: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(run)
    assert len(listed(f"box:{tmp_path / 'link'}").files) == len(ODD) + 1


def test_a_directory_that_is_not_there(ssh: SshDouble, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(BadRequest, match=r"^box:/none does not exist; is the path right\?"):
        listed("box:/none")
    with pytest.raises(BadRequest, match="file is not a directory"):
        listed(f"box:{tmp_path / 'file'}")


def test_a_listing_that_is_not_whole_is_none(ssh: SshDouble, tmp_path: Path) -> None:
    path = tmp_path / "find"
    path.write_text("#!/bin/sh\necho 'find: ./x: Permission denied' >&2\nexit 1\n")
    path.chmod(0o755)
    ssh.has_programs("box", [*programs("sh"), path])
    with pytest.raises(
        BadRequest, match=r"cannot be listed as a whole: find: ./x: Permission denied"
    ):
        listed(f"box:{tmp_path}")


def test_a_node_without_find(ssh: SshDouble, tmp_path: Path) -> None:
    ssh.has_programs("box", programs("sh"))
    with pytest.raises(BadRequest, match="cannot be listed"):
        listed(f"box:{tmp_path}")
