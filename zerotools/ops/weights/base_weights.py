"""The model of a checkpoint with only adapters: its frozen weights, from their directory.

Adapters of a model in 4 bits are merged into the original weights of the directory that the run
began with, and not into the rounded ones: the merged model then has the adapters' change without
rounding.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from zerotools.core.boxes import Box
from zerotools.core.checkpoint import Checkpoint, Key, Origin, Tensor
from zerotools.core.errors import BadFile, BadRequest
from zerotools.core.hub_layout import HubLayout
from zerotools.formats.safetensors.read import read
from zerotools.runs.base_model_record import BaseRecord, base_mismatch
from zerotools.runs.job_record import JobRecord

BASE, A, B = ".base_layer.", ".lora_A.default.", ".lora_B.default."


def with_base(adapters: Checkpoint, record: JobRecord, base: BaseRecord) -> Checkpoint:
    """Return the tensors of `adapters` and those of the model `base`, in the layout of the Hub,
    except that weights with an adapter have the job's names. No bytes are read.

    Raises:
        BadRequest: the base model does not exist any more, or has files of other sizes.
        BadFile: it lacks a weight that gets an adapter.
    """
    directory = Path(base.path)
    _refuse(adapters, base_mismatch(base, directory, digests=False))
    model = _read(directory, base)
    renamed = {
        _on_hub(f"{stem}.weight", record.hub): f"{stem}{BASE}weight"
        for key in adapters.tensors
        for stem, found, _ in [key.name.partition(A)]
        if found
    }
    held = {key.name for key in model.tensors}
    for name in renamed:
        if name not in held:
            raise BadFile(
                f"{directory} has no {name}, to which an adapter of {_of(adapters)} belongs"
            )
    own = {_on_hub(key.name, record.hub) for key in adapters.tensors}
    tensors: dict[Key, Tensor] = {
        Key(renamed.get(key.name, key.name), key.role): tensor
        for key, tensor in model.tensors.items()
        if key.name not in own
    }
    return replace(
        adapters,
        tensors=tensors | dict(adapters.tensors),
        files={**model.files, **adapters.files},
        aliases={},
    )


def _read(directory: Path, base: BaseRecord) -> Checkpoint:
    """Return the tensors of the files that the run read, by absolute paths, for use with tensors of
    another directory. Other files may lie next to them, even a run, which would be read instead."""
    tensors: dict[Key, Tensor] = {}
    files: dict[str, int] = {}
    for name in base.files:
        part = read(directory / name)
        for key, tensor in part.tensors.items():
            if key in tensors:
                raise BadFile(
                    f"{directory / name} holds {key.name}, which another file there also holds"
                )
            chunks = (replace(each, file=str(part.root / each.file)) for each in tensor.chunks)
            tensors[key] = replace(tensor, chunks=tuple(chunks))
        files |= {str(part.root / file): size for file, size in part.files.items()}
    return Checkpoint(directory, tensors, Origin("safetensors", directory), files=files)


def check_bytes(adapters: Checkpoint, base: BaseRecord) -> None:
    """Read all of the base model.

    Raises:
        BadRequest: it is not the model that the adapters were trained on.
    """
    _refuse(adapters, base_mismatch(base, Path(base.path)))


def _refuse(adapters: Checkpoint, why: str | None) -> None:
    if why is not None:
        raise BadRequest(
            f"{_of(adapters)} holds only adapters, and their base model has changed: {why}; name "
            "a copy of it with zerotools consolidate --base DIR, or export the adapter with "
            "--adapter-only"
        )


def _of(adapters: Checkpoint) -> str:
    return str(adapters.origin.path)


def _on_hub(name: str, hub: HubLayout) -> str:
    """Return the name of the Hub's tensor that is all of the job's tensor `name`; else that
    name."""
    blocks = hub.get(name, ())
    if len(blocks) == 1 and blocks[0].box == Box.whole(blocks[0].shape):
        return blocks[0].name
    return name
