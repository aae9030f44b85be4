"""Floor 2: one reader and, where it is written, one writer per format; `detect` finds which.

A format is imported only when a file of it is there. Formats do not import each other, but
for megatron, whose torch_dist is a DCP.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path

from zerotools.core.checkpoint import Checkpoint
from zerotools.core.errors import BadRequest, Unsupported
from zerotools.core.training import TrainingState
from zerotools.formats.detect import Detected, detect
from zerotools.io.files.sources import recording


@dataclass(frozen=True, slots=True)
class Format:
    """A format by its module, which has `read(path) -> Checkpoint`, with the keywords `options`,
    and `training_of(checkpoint)`."""

    name: str
    title: str
    module: str
    options: tuple[str, ...] = ()


FORMATS: Mapping[str, Format] = {
    "dcp": Format("dcp", "torch DCP", "zerotools.formats.dcp", ("section",)),
    "deepspeed": Format(
        "deepspeed", "DeepSpeed ZeRO", "zerotools.formats.deepspeed", ("tag", "layout")
    ),
    "megatron": Format("megatron", "Megatron", "zerotools.formats.megatron"),
    "safetensors": Format("safetensors", "safetensors", "zerotools.formats.safetensors"),
    "torchfile": Format("torchfile", "a torch file", "zerotools.formats.torchfile"),
}


def read(
    path: Path, *, tag: str | None = None, layout: Path | None = None, section: str | None = None
) -> Checkpoint:
    """The checkpoint at `path`, in whichever format it is, of which there is one model to export.

    The file `best` or `latest` of a job's output directory means the checkpoint that it names.
    `tag` chooses one of a DeepSpeed save directory; `layout` is a file of rules on how its
    tensor-parallel ranks share the weights, for checkpoints that do not say it themselves;
    `section` chooses one of several models in a DCP.

    Raises:
        BadRequest: there is nothing at `path`, it has no such tag or section, or it has several
            models and does not say which is meant.
        BadFile: it is not a checkpoint, or a damaged or unfinished one.
        Unsupported: it is in a format that is not read.
    """
    checkpoint = read_any(path, tag=tag, layout=layout, section=section)
    require_model(checkpoint)
    return checkpoint


def read_any(
    path: Path, *, tag: str | None = None, layout: Path | None = None, section: str | None = None
) -> Checkpoint:
    """As `read`, also of what can be shown and not be exported: several models of which none is
    meant, formats that are only recognised. `Origin.question` and `Origin.refusal` say so."""
    if path.name in ("", ".."):  # `.` and the like: outputs are named as their sources
        path = path.resolve()
    if path.name in ("best", "latest") and path.is_file():  # hints beside a job's checkpoints
        path = import_module("zerotools.runs.checkpoint_dirs").resolve_hint(path)
    found = detect(path)
    form = FORMATS[found.format]
    given = {"tag": tag, "layout": layout, "section": section}
    options = {name: value for name, value in given.items() if value is not None}
    useless = [f"--{name}" for name in options if name not in form.options]
    if useless:
        raise BadRequest(
            f"{found.path} is {form.title}, which does not take {' and '.join(useless)}; leave it "
            "out"
        )
    with recording() as sources:
        checkpoint: Checkpoint = import_module(form.module).read(found.path, **options)
    origin = replace(checkpoint.origin, notes=(*found.notes, *checkpoint.origin.notes))
    return replace(checkpoint, origin=origin, stamps=sources.stamps)


def require_model(checkpoint: Checkpoint) -> None:
    """Refuse what `read_any` can show and nothing can export.

    Raises:
        BadRequest: it has several models, of which none is meant.
        Unsupported: it is recognised and not read.
    """
    require_readable(checkpoint)
    if checkpoint.origin.question is not None:
        raise BadRequest(checkpoint.origin.question)


def require_readable(checkpoint: Checkpoint) -> None:
    """Refuse what is recognised and not read: nothing can be made of it, in no format.

    Raises:
        Unsupported: says what it is.
    """
    if checkpoint.origin.refusal is not None:
        raise Unsupported(checkpoint.origin.refusal)


def training_of(checkpoint: Checkpoint) -> TrainingState:
    """What `checkpoint`, as `read` gave it, says of the run beside its tensors. Reads numbers such
    as `step` where they are tensors.

    Raises:
        BadFile: the files contradict themselves.
    """
    state: TrainingState = import_module(format_of(checkpoint).module).training_of(checkpoint)
    return state


def format_of(checkpoint: Checkpoint) -> Format:
    """The format whose reader gave `checkpoint`, or reads it once it is written."""
    name = checkpoint.origin.format
    return FORMATS["deepspeed" if name == "universal" else name]


__all__ = [
    "FORMATS",
    "Detected",
    "Format",
    "detect",
    "format_of",
    "read",
    "read_any",
    "require_model",
    "require_readable",
    "training_of",
]
