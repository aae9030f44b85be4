"""A FIFO, a device, a socket or a directory in place of any file of a checkpoint: the reader says
what it is, at once, and waits for nobody."""

from __future__ import annotations

import os
import shutil
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.golden_files import DEEPSPEED, TORCH
from zerotools import formats
from zerotools.core.errors import BadFile, ZerotoolsError
from zerotools.formats.deepspeed.schema.read_tensor_sharding_rules import read_layout
from zerotools.io.files.regular_files import open_regular, read_regular
from zerotools.jobs.datafiles.json_objects import read_objects
from zerotools.jobs.datafiles.token_files import read_token_header
from zerotools.ops.inspection.inspect import inspect
from zerotools.ops.resume_from_other_program.parameter_order_option import read_order
from zerotools.runs.manifest import read_manifest
from zerotools.runs.training_record import read_record


def bound_socket(path: Path) -> None:
    with closing(socket.socket(socket.AF_UNIX)) as server:
        here = Path.cwd()
        os.chdir(path.parent)  # a socket's path has 107 bytes at most
        server.bind(path.name)
        os.chdir(here)


SPECIAL: dict[str, tuple[Callable[[Path], None], str]] = {
    "fifo": (os.mkfifo, r"a named pipe \(FIFO\)"),
    "zeros": (lambda path: path.symlink_to("/dev/zero"), "a character device"),
    "socket": (bound_socket, "a socket"),
    "directory": (Path.mkdir, "a directory"),
}


@pytest.fixture(autouse=True)
def soon() -> Iterator[None]:
    """A reader that waits is interrupted: opening a FIFO takes for ever."""

    def late(*_: object) -> None:
        raise TimeoutError("the reader waits")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(20)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


GIVEN: dict[str, Callable[[Path], object]] = {
    "layout": read_layout,
    "order": read_order,
    "token ids": lambda path: read_token_header(path, "uint16"),
    "examples": lambda path: next(read_objects(path)),
}


@pytest.mark.parametrize("kind", ["fifo", "zeros"])
@pytest.mark.parametrize("what", GIVEN)
def test_a_file_that_the_user_names_is_a_regular_one(tmp_path: Path, what: str, kind: str) -> None:
    make, said = SPECIAL[kind]
    path = tmp_path / "a"
    make(path)
    with pytest.raises(BadFile, match=f"{path} is {said} and not a regular file"):
        GIVEN[what](path)


@pytest.mark.parametrize("kind", SPECIAL)
def test_it_is_named(tmp_path: Path, kind: str) -> None:
    make, said = SPECIAL[kind]
    path = tmp_path / "a"
    make(path)
    with pytest.raises(BadFile, match=f"{path} is {said} and not a regular file"):
        open_regular(path)


def test_a_file_that_is_too_large_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"12345")
    assert read_regular(tmp_path / "a", 5) == b"12345"
    with pytest.raises(BadFile, match="has 5 bytes, but a file of its kind may have at most 4"):
        read_regular(tmp_path / "a", 4)


def test_a_link_to_a_file_is_followed(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"1")
    (tmp_path / "b").symlink_to("a")
    assert read_regular(tmp_path / "b", 1) == b"1"


DATA = (".pt", ".bin", ".distcp", ".safetensors", ".metadata")
EXTRA = ("extra_state", "legacy")  # read by name alone
CHECKPOINTS = {
    "dcp": TORCH / "fsdp2-dcp-w3" / "checkpoint",
    "fsdp1": TORCH / "fsdp1-sharded-bin-w2" / "checkpoint",
    "verl": TORCH / "fsdp2-verl-w3" / "checkpoint",
    "hf sharded": TORCH / "fsdp2-hf-sharded-w2" / "checkpoint",
    "torch file": TORCH / "training-file" / "checkpoint",
    "deepspeed": DEEPSPEED / "z2-bf16-w2" / "checkpoint",
}


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_in_place_of_any_file_of_a_checkpoint(tmp_path: Path, name: str) -> None:
    root = tmp_path / "checkpoint"
    shutil.copytree(CHECKPOINTS[name], root)
    files = sorted(path for path in root.rglob("*") if path.is_file())
    assert files
    for path in files:
        kept = path.read_bytes()
        path.unlink()
        for kind in ("fifo", "zeros"):
            SPECIAL[kind][0](path)
            try:
                problems = inspect(formats.read(path if name == "torch file" else root)).problems
            except ZerotoolsError:
                problems = []
            else:
                assert problems or not path.name.endswith(DATA) or path.name.startswith(EXTRA)
            path.unlink()
        path.write_bytes(kept)


@pytest.mark.parametrize("name", ["MANIFEST.json", "job.json"])
def test_in_place_of_a_jobs_own_files(tmp_path: Path, name: str) -> None:
    os.mkfifo(tmp_path / name)
    with pytest.raises(BadFile, match="a named pipe"):
        (read_manifest if name == "MANIFEST.json" else read_record)(tmp_path)
