"""Checkpoints of which one file changes at a system call of the command that reads it."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from harness.syscalls import run_touching
from tests.golden_files import DEEPSPEED, TORCH
from tests.hostile.archives import state_dict
from tests.hostile.dcp_cases import DATA, chunk, saying
from tests.hostile.safetensors_cases import SOUND, index

SHARD = "model-00001-of-00001.safetensors"
LONGER = b"more" * 1024


def _sharded(directory: Path) -> Path:
    (directory / SHARD).write_bytes(SOUND)
    return index({"w": SHARD})(directory)


def _one(name: str, data: bytes) -> Callable[[Path], Path]:
    def make(directory: Path) -> Path:
        (directory / name).write_bytes(data)
        return directory

    return make


def _golden(root: Path) -> Callable[[Path], Path]:
    def make(directory: Path) -> Path:
        return Path(shutil.copytree(root / "checkpoint", directory / "run"))

    return make


READERS: dict[str, tuple[Callable[[Path], Path], str]] = {
    "zip": (_one("pytorch_model.bin", state_dict({})), "pytorch_model.bin"),
    "safetensors": (_one("model.safetensors", SOUND), "model.safetensors"),
    "index": (_sharded, "model.safetensors.index.json"),
    "shard": (_sharded, SHARD),
    "metadata": (saying(chunk()), ".metadata"),
    "item": (saying(chunk()), DATA),
    "deepspeed": (_golden(DEEPSPEED / "z2-bf16-w2"), "*rank_1_*optim_states.pt"),
    "model file": (_golden(DEEPSPEED / "z2-bf16-w2"), "*mp_rank_00_model_states.pt"),
    "latest": (_golden(DEEPSPEED / "z2-bf16-w2"), "latest"),
    "legacy": (_golden(DEEPSPEED / "z3-bf16-w2-legacy"), "*rank_1_*optim_states.pt"),
    "universal": (_golden(DEEPSPEED / "universal-z2-bf16-w3"), "fp32.pt"),
    "verl": (_golden(TORCH / "fsdp2-verl-w3"), "model*rank_1.pt"),
}
"""What is made, and the file of it that changes."""


def _swap(path: Path) -> None:
    """Another file of the same bytes, but the last."""
    other = path.with_name("other")
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    other.write_bytes(data)
    other.replace(path)


def _grow(path: Path) -> None:
    with path.open("ab") as file:
        file.write(LONGER)


CHANGES: dict[str, Callable[[Path], None]] = {
    "shrinks": lambda path: os.truncate(path, path.stat().st_size // 2),
    "is emptied": lambda path: os.truncate(path, 0),
    "grows": _grow,
    "is replaced": _swap,
    "is deleted": Path.unlink,
}

COMMANDS: dict[str, tuple[str, ...]] = {
    "inspect": ("inspect", "{path}"),
    "verify": ("verify", "{path}"),
    "verify --against": ("verify", "{same}", "--against", "{path}"),
    "diff": ("diff", "{same}", "{path}"),
    "consolidate": ("consolidate", "{path}", "{out}"),
    "consolidate --adapter-only": ("consolidate", "--adapter-only", "{path}", "{out}"),
    "convert": ("convert", "{path}", "{out}", "--to", "dcp"),
    "reshard": ("reshard", "{path}", "{out}", "--world-size", "1"),
    "salvage": ("salvage", "{path}", "{out}"),
    "salvage --fill-from": ("salvage", "{same}", "{out}", "--fill-from", "{path}"),
    "thin": ("thin", "{path}", "--yes"),
}


@dataclass(frozen=True)
class Shown:
    """`calls` are those that touched the file, `status` None where a signal ended the command;
    `made` has the bytes of the output's files."""

    calls: tuple[str, ...]
    status: int | None
    said: str
    made: dict[str, bytes]


def show(reader: str, command: str, work: Path, number: int | None, change: str = "grows") -> Shown:
    """Run a command; before its call `number` that touches the file of `reader`, it changes."""
    shutil.rmtree(work, ignore_errors=True)
    for name in ("in", "same"):
        (work / name).mkdir(parents=True)
    make, _ = READERS[reader]
    path, same, out = make(work / "in"), make(work / "same"), work / "out"
    file = file_of(reader, work)
    given = [part.format(path=path, same=same, out=out) for part in COMMANDS[command]]
    with tempfile.TemporaryFile() as said:
        found = run_touching(
            lambda: _be_the_command(given, said.fileno()),
            file,
            number,
            lambda: CHANGES[change](file),
        )
        said.seek(0)
        text = said.read().decode("utf-8", "replace")
    made = {
        each.relative_to(out).as_posix(): each.read_bytes()
        for each in sorted(out.rglob("*"))
        if each.is_file() and not each.name.startswith(".zerotools")
    }
    left = [each.name for each in work.iterdir() if each.name not in ("in", "same", "out")]
    assert not [name for name in left if not name.endswith(".zerotools.json")], left
    return Shown(tuple(found.calls), found.status, text, made)


def file_of(reader: str, work: Path, place: str = "in") -> Path:
    """The file that changes, or the one like it that does not (`same`)."""
    return sorted((work / place).rglob(READERS[reader][1]))[0]


def _be_the_command(given: list[str], said: int) -> None:
    """Never returns."""
    from zerotools.cli.main import run

    os.dup2(said, 1)
    os.dup2(said, 2)
    sys.stdout, sys.stderr = (os.fdopen(number, "w") for number in (1, 2))  # not the test's own
    status = run(loaded(), given)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


@cache
def loaded() -> Any:
    """The command line with all its commands, so that a child of a fork imports nothing more."""
    from zerotools.cli.main import build

    group = build()
    for name in {command[0] for command in COMMANDS.values()}:
        group.get_command(None, name)
    return group
