"""A tutorial, run as its reader would: its files written, its commands given, in order.

A fenced block with `file=NAME` is a file, one of `sh` is run, and the block with `variant=cpu`
stands for the two lines of a job file that ask for GPUs. A block of `bash` is only shown: it
installs, or starts what the test has started.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from harness.started import run

ROOT = Path(__file__).resolve().parents[2]
FENCE = re.compile(r"^```(?P<language>\w+)(?P<info>[^\n]*)\n(?P<text>.*?)^```$", re.M | re.S)
ON_GPUS = re.compile(r'^device = "cuda"\ngpus = \d+\n', re.M)
DEVICE = re.compile(r"^device = ", re.M)
"""Each job file has one such line, outside of its tables."""
DEADLINE_SECONDS = 600


@dataclass(frozen=True)
class Block:
    """A fenced block, and the words after its language."""

    language: str
    info: dict[str, str]
    text: str


def blocks(page: str) -> Iterator[Block]:
    """The fenced blocks of a page, in order."""
    for match in FENCE.finditer(page):
        words = (word.partition("=") for word in match["info"].split())
        yield Block(match["language"], {name: value for name, _, value in words}, match["text"])


def follow(page: Path, directory: Path, socket: Path, python: Path | None = None) -> str:
    """Do in `directory` what the page says, on CPUs; all that the commands printed. Jobs and
    commands are given `python`, where there is one, which is called so.

    Raises:
        AssertionError: a command failed.
    """
    found = list(blocks(page.read_text("utf-8")))
    on_cpus = "".join(block.text for block in found if block.info.get("variant") == "cpu")
    named = "" if python is None else f"python = {json.dumps(str(python))}\n"
    said = []
    for block in found:
        if "file" in block.info:
            text = ON_GPUS.sub(lambda _: on_cpus, block.text)
            text = DEVICE.sub(lambda line: named + line[0], text)
            (directory / block.info["file"]).write_text(text, "utf-8")
        elif block.language == "sh":
            said.append(_run(block.text, directory, socket, python))
    return "".join(said)


def _run(commands: str, directory: Path, socket: Path, python: Path | None) -> str:
    own = Path(sys.executable).parent
    path = ":".join(map(str, [*([python.parent] if python else []), own, os.environ["PATH"]]))
    done = run(
        ["bash", "-euo", "pipefail", "-c", commands],
        cwd=directory,
        env={
            **os.environ,
            "PATH": path,
            "PYTHONPATH": f"{ROOT}:{ROOT / 'daemon'}",
            "ZEROTOOLS_SOCKET": str(socket),
        },
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=DEADLINE_SECONDS,
    )
    assert done.returncode == 0, f"{commands}\nended with {done.returncode}:\n{done.stdout}"
    return f"{commands}{done.stdout}"
