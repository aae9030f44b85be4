"""One file that holds every tensor whole."""

from __future__ import annotations

from collections.abc import Mapping, Set
from pathlib import Path

from zerotools.core.checkpoint import Checkpoint, Key, Origin
from zerotools.core.errors import BadFile
from zerotools.formats.torch_optimizers import Shape
from zerotools.formats.torchfile.reading.merge import aliases, merge_rank_files
from zerotools.formats.torchfile.schema.opened_file import (
    FORMAT,
    OpenedFile,
    TorchFileNative,
    keyed,
)
from zerotools.formats.torchfile.schema.param_numbers import float_shapes, names_by_number
from zerotools.formats.torchfile.schema.state_dict import STATE_ROLE, FileContents
from zerotools.formats.torchfile.schema.training_keys import BUFFER_NAMES


def read_single(
    path: Path, opened: OpenedFile, weights: Mapping[str, Shape] | None = None
) -> Checkpoint:
    """Return the checkpoint in one file; `path` is the requested path. `weights` are those of the
    model, if the file holds only its optimizer.

    Raises:
        BadFile: it holds no tensors.
    """
    file, contents = opened
    tied = aliases([(file, contents.weights)])
    own = {name: pieces for name, pieces in contents.weights.items() if name not in tied}
    numbered, said = names_by_number(
        contents.groups,
        contents.moments,
        weights if weights is not None else float_shapes(own),
    )
    tensors = keyed(
        merge_rank_files([(file, contents.weights)]),
        merge_rank_files([(file, contents.moments)]),
        numbered,
        tied,
    )
    buffers = _buffers(contents)
    tensors = {
        Key(n, "buffer") if role == "param" and n in buffers else Key(n, role): tensor
        for (n, role), tensor in tensors.items()
    }
    rest = merge_rank_files([(file, contents.rest)])
    tensors |= {Key(name, STATE_ROLE): tensor for name, tensor in rest.items()}
    if not tensors:
        raise BadFile(f"{path} holds no tensors")
    return Checkpoint(
        root=file.root,
        tensors=tensors,
        origin=Origin(
            FORMAT,
            path,
            notes=(*_notes(file.name, contents), *([said] if said else [])),
        ),
        native=TorchFileNative(numbered),
        aliases=tied,
        state=contents.state,
        files={file.name: file.size},
    )


def _buffers(contents: FileContents) -> Set[str]:
    """Return the names of buffers if the file lists them next to its weights, as DeepSpeed does."""
    listed = contents.state.get(BUFFER_NAMES) if contents.wrapper is not None else None
    names = listed if isinstance(listed, list) else []
    return {name for name in names if isinstance(name, str)}


def _notes(name: str, contents: FileContents) -> list[str]:
    """Return notes on the position of the weights, and on other values next to them."""
    if contents.wrapper is None:
        return []
    notes = [f"took the weights below {contents.wrapper!r} in {name}"]
    beside = sorted({key.partition(".")[0] for key in contents.rest})
    if beside:
        notes.append(f"the other tensors are not weights: {', '.join(beside)}")
    return notes
