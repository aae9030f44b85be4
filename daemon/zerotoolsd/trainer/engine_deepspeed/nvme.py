"""The directory to which DeepSpeed offloads a rank's state, and the operator for that.

DeepSpeed names its files only by rank, and does not remove them. To separate jobs with the same
`nvme_path`, each rank has a separate directory there. It is removed when the run ends; after a
kill, when the job starts again.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from zerotools.core.errors import BadRequest
from zerotools.jobs.preflight import async_io
from zerotools.jobs.tables.deepspeed import device_of
from zerotools.jobs.tables.spec import JobSpec
from zerotoolsd.trainer.engine_deepspeed.builds import BUILDS


def make_nvme_ready(
    config: dict[str, Any], output: Path, rank: int, device: str, say: Callable[[str], None]
) -> None:
    """Have DeepSpeed offload from `device` to NVMe by `config`, into directories of this rank
    alone.

    Raises:
        BadRequest: async_io cannot be compiled here, or a directory cannot be made.
    """
    if (why := async_io.lacking(device)) is not None:
        raise BadRequest(async_io.refusal(why))
    builds = os.environ.get(BUILDS)
    if builds and not (Path(builds) / "async_io" / "async_io.so").exists():
        say(f"compiling async_io into {builds}: this takes minutes, and happens only once")
    take_own_directories(config, output, rank)


def take_own_directories(config: dict[str, Any], output: Path, rank: int) -> None:
    """Replace each `nvme_path` by an empty directory of `rank` of the job that writes to `output`.

    Raises:
        BadRequest: one cannot be made.
    """
    own = dict(_own_directories(config, output, rank))
    for directory in set(own.values()):
        try:
            if directory.exists():
                shutil.rmtree(directory)
            directory.mkdir(parents=True)
        except OSError as error:
            raise BadRequest(f"nvme_path: {directory}: {error.strerror}") from None
    for section, directory in own.items():
        config["zero_optimization"][section]["nvme_path"] = str(directory)


def remove_own_directories(spec: JobSpec, rank: int) -> None:
    """Remove the files that `rank` of the job offloaded to NVMe, if it did."""
    if spec.engine != "deepspeed":
        return
    for _, directory in _own_directories(spec.deepspeed.tree, Path(spec.output_dir or ""), rank):
        shutil.rmtree(directory, ignore_errors=True)
        with suppress(OSError):  # that of other ranks is still there
            directory.parent.rmdir()


def _own_directories(
    config: Mapping[str, Any], output: Path, rank: int
) -> Iterator[tuple[str, Path]]:
    name = f"zerotools-{hashlib.sha256(os.fsencode(output.absolute())).hexdigest()[:16]}"
    for what in ("optimizer", "param"):
        if device_of(config, what) == "nvme":
            section = f"offload_{what}"
            path = Path(config["zero_optimization"][section]["nvme_path"])
            yield section, path / name / f"rank{rank}"
