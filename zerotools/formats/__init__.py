"""Floor 2: one reader and, where it is written, one writer per format; `detect` finds which.

A format is imported only when a file of it is there. Formats do not import each other.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path

from zerotools.core.checkpoint import Checkpoint
from zerotools.core.errors import BadRequest
from zerotools.core.training import TrainingState
from zerotools.formats.detect import Detected, detect
from zerotools.io.sources import recording


@dataclass(frozen=True, slots=True)
class Format:
    """A format by its module, which has `read(path) -> Checkpoint` (with `tag=` and
    `layout=` if it is one of DeepSpeed's, which has tags) and `training_of(checkpoint)`."""

    name: str
    title: str
    module: str
    has_tags: bool = False


FORMATS: Mapping[str, Format] = {
    "dcp": Format("dcp", "torch DCP", "zerotools.formats.dcp"),
    "deepspeed": Format(
        "deepspeed", "DeepSpeed ZeRO", "zerotools.formats.deepspeed", has_tags=True
    ),
    "safetensors": Format("safetensors", "safetensors", "zerotools.formats.safetensors"),
    "torchfile": Format("torchfile", "a torch file", "zerotools.formats.torchfile"),
}


def read(path: Path, *, tag: str | None = None, layout: Path | None = None) -> Checkpoint:
    """The checkpoint at `path`, in whichever format it is.

    The file `best` or `latest` of a job's output directory means the checkpoint that it names.
    `tag` chooses one of a DeepSpeed save directory; `layout` is a file of rules on how its
    tensor-parallel ranks share the weights, for checkpoints that do not say it themselves.

    Raises:
        BadRequest: there is nothing at `path`, or it has no such tag.
        BadFile: it is no checkpoint, or a damaged or unfinished one.
        Unsupported: it is in a format that is not read.
    """
    if path.name in ("", ".."):  # `.` and the like: outputs are named as their sources
        path = path.resolve()
    if path.name in ("best", "latest") and path.is_file():  # hints beside a job's checkpoints
        path = import_module("zerotools.formats.dcp.jobcheckpoint").meant(path)
    found = detect(path)
    form = FORMATS[found.format]
    options = {
        name: value for name, value in (("tag", tag), ("layout", layout)) if value is not None
    }
    if options and not form.has_tags:
        given = " and ".join(f"--{name}" for name in options)
        raise BadRequest(
            f"{found.path} is {form.title}, which has no use for {given}; leave it out"
        )
    with recording() as sources:
        checkpoint: Checkpoint = import_module(form.module).read(found.path, **options)
    origin = replace(checkpoint.origin, notes=(*found.notes, *checkpoint.origin.notes))
    return replace(checkpoint, origin=origin, stamps=sources.stamps)


def training_of(checkpoint: Checkpoint) -> TrainingState:
    """What `checkpoint`, as `read` gave it, says of the run beside its tensors. Reads numbers such
    as `step` where they are tensors.

    Raises:
        BadFile: the files contradict themselves.
    """
    form = FORMATS[
        "deepspeed" if checkpoint.origin.format == "universal" else checkpoint.origin.format
    ]
    state: TrainingState = import_module(form.module).training_of(checkpoint)
    return state


__all__ = ["FORMATS", "Detected", "Format", "detect", "read", "training_of"]
