"""The requirements of a job for this machine, other than GPUs and files to read."""

from __future__ import annotations

import importlib.util
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

from zerotools.io.files.packages import REQUIREMENTS, install_command
from zerotools.jobs.tables.far_places import in_store
from zerotools.jobs.tables.spec import JobSpec
from zerotoolsd.attempts.environment import job_environment

COMPILERS = {"cpu": ("c++", "g++", "clang++"), "cuda": ("cc", "gcc", "clang")}
"""Compilers that torch.compile calls, for generated C++ on CPUs and for Triton's launchers on
GPUs."""
CHOICE = {"cpu": "CXX", "cuda": "CC"}


def lacking(spec: JobSpec, environment: Mapping[str, str] | None = None) -> Iterator[str]:
    """Yield a sentence for each missing requirement; `environment` is the job's own."""
    if spec.train.compile:
        yield from _compiler(spec, {**(environment or job_environment(spec)), **spec.env})
    if (spec.checkpoint.upload_to or in_store(spec.resume_from)) and not _reads_stores():
        key = "checkpoint.upload_to" if spec.checkpoint.upload_to else "resume_from"
        yield (
            f"{key}: is in an object store, and the daemon's Python has no obstore; run "
            f"{install_command(REQUIREMENTS['obstore'])}"
        )
    if spec.offload.path is not None:
        yield from _directory(Path(spec.offload.path))


def _reads_stores() -> bool:
    return importlib.util.find_spec("obstore") is not None


def _compiler(spec: JobSpec, environment: Mapping[str, str]) -> Iterator[str]:
    chosen = environment.get(CHOICE[spec.device])
    names = (chosen,) if chosen else COMPILERS[spec.device]
    if not any(shutil.which(name, path=environment.get("PATH")) for name in names):
        yield (
            f"train.compile = true: needs a compiler and PATH has none of {', '.join(names)}; "
            "install one, or leave it out"
        )


def _directory(path: Path) -> Iterator[str]:
    if path.exists() and not path.is_dir():
        yield f"offload.path = {path}: is not a directory"
        return
    parent = next(p for p in (path, *path.parents) if p.exists())
    if not os.access(parent, os.W_OK | os.X_OK):
        yield f"offload.path = {path}: {parent} cannot be written"
