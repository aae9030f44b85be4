"""What is no file, cannot be read, or leads nowhere."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from tests.hostile.case import WRITE, Case, Make
from tests.hostile.dcp_cases import DATA, chunk, saying
from tests.hostile.safetensors_cases import MODEL, SOUND, index


def model(make: Callable[[Path], object]) -> Make:
    """A directory whose weights are what `make` puts there."""

    def made(directory: Path) -> Path:
        make(directory / MODEL)
        return directory

    return made


def _in_place_of_metadata(make: Callable[[Path], object]) -> Make:
    def made(directory: Path) -> Path:
        path = saying(chunk())(directory)
        (path / ".metadata").unlink()
        make(path / ".metadata")
        return path

    return made


def _in_place_of_data(make: Callable[[Path], object]) -> Make:
    def made(directory: Path) -> Path:
        path = saying(chunk())(directory)
        (path / DATA).unlink()
        make(path / DATA)
        return path

    return made


def _loop(path: Path) -> None:
    path.symlink_to(path.name)


def _unreadable(path: Path) -> None:
    path.write_bytes(SOUND)
    path.chmod(0)


def _closed_directory(directory: Path) -> Path:
    path = directory / "closed"
    path.mkdir()
    (path / MODEL).write_bytes(SOUND)
    path.chmod(0)
    return path


def _directory_loop(directory: Path) -> Path:
    path = index({"w": "sub/sub/shard.safetensors"})(directory)
    (path / "sub").symlink_to(path)
    return path


def _pipe_beside(directory: Path) -> Path:
    (directory / MODEL).write_bytes(SOUND)
    os.mkfifo(directory / "config.json")
    os.mkfifo(directory / "tokenizer.json")
    return directory


CASES = (
    Case(
        "a named pipe for the weights",
        model(os.mkfifo),
        r"is a named pipe \(FIFO\) and not a regular file",
    ),
    Case(
        "a device for the weights",
        model(lambda path: path.symlink_to("/dev/zero")),
        "is a character device and not a regular file",
    ),
    Case("a directory for the weights", model(Path.mkdir), "is a directory and not a regular file"),
    Case(
        "a link to itself for the weights",
        model(_loop),
        "Too many levels of symbolic links|is missing",
        status=None,
    ),
    Case(
        "a link to nothing for the weights",
        model(lambda path: path.symlink_to("nothing")),
        "is missing|No such file",
        status=None,
    ),
    Case("a named pipe for the metadata", _in_place_of_metadata(os.mkfifo), "is a named pipe"),
    Case(
        "a device for a data file",
        _in_place_of_data(lambda path: path.symlink_to("/dev/zero")),
        "is missing|character device",
        WRITE,
    ),
    Case("named pipes for config and tokenizer", _pipe_beside, "config.json is not in", WRITE, 0),
    Case(
        "a directory that holds itself",
        _directory_loop,
        "shard.safetensors",
        status=None,
    ),
    Case(
        "weights without the right to read them",
        model(_unreadable),
        "Permission denied",
        status=None,
        as_nobody=True,
    ),
    Case(
        "a directory without the right to look into it",
        _closed_directory,
        "Permission denied|cannot be listed",
        status=None,
        as_nobody=True,
    ),
)
