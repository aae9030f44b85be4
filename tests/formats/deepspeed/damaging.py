"""Copies of golden checkpoints to be damaged, and what every command makes of them."""

from __future__ import annotations

import shutil
from pathlib import Path

from tests.golden_files import DEEPSPEED
from zerotools.core.errors import ZerotoolsError
from zerotools.formats import read
from zerotools.ops.conversions import consolidate, convert, reshard
from zerotools.ops.conversions.conversion import Conversion, prove_coverage
from zerotools.ops.inspection.inspect import inspect


def copied(case: str, tmp_path: Path) -> Path:
    """The one tag directory of a copy of a case."""
    shutil.copytree(DEEPSPEED / case / "checkpoint", tmp_path / "saved")
    (tag,) = (path for path in (tmp_path / "saved").iterdir() if path.is_dir())
    return tag


def problems_of(tag: Path) -> list[str]:
    """What `inspect` says is wrong."""
    try:
        return [problem.message for problem in inspect(read(tag)).problems]
    except ZerotoolsError as error:
        return [str(error)]


def refusals(tag: Path, out: Path, ranks: int = 4) -> dict[str, str]:
    """What each command that writes says in refusing; one that would write is not listed."""
    said = {}
    commands = {
        "consolidate": lambda: consolidate.prepare_export(tag, out, consolidate.Options()),
        "reshard": lambda: reshard.prepare_reshard(tag, out, world_size=ranks),
        "convert": lambda: convert.prepare_convert(tag, out, "dcp", {"world_size": 1}),
    }
    for name, prepare in commands.items():
        try:
            conversion = prepare()
            if isinstance(conversion, Conversion):
                prove_coverage(conversion)
        except ZerotoolsError as error:
            said[name] = str(error)
    return said


ALL = {"consolidate", "reshard", "convert"}
