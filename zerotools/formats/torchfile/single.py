"""One file that holds every tensor whole."""

from __future__ import annotations

from pathlib import Path

from zerotools.core.checkpoint import Checkpoint, Key, Origin
from zerotools.core.errors import BadFile
from zerotools.formats.torchfile.contents import FORMAT, NUMBERED, Opened, keyed
from zerotools.formats.torchfile.merge import aliases, merge
from zerotools.formats.torchfile.optimizer import names_by_number
from zerotools.formats.torchfile.tree import STATE_ROLE, Contents


def whole(path: Path, opened: Opened) -> Checkpoint:
    """The checkpoint in one file; `path` is what was asked for.

    Raises:
        BadFile: it holds no tensors.
    """
    file, contents = opened
    tied = aliases([(file, contents.weights)])
    numbered, said = names_by_number(
        contents.groups,
        contents.moments,
        {n: pieces for n, pieces in contents.weights.items() if n not in tied},
    )
    tensors = keyed(
        merge([(file, contents.weights)]), merge([(file, contents.moments)]), numbered, tied
    )
    rest = merge([(file, contents.rest)])
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
            details={NUMBERED: numbered},
        ),
        aliases=tied,
        state=contents.state,
        files={file.name: file.size},
    )


def _notes(name: str, contents: Contents) -> list[str]:
    """Where the weights were found, and what lies beside them."""
    if contents.wrapper is None:
        return []
    notes = [f"took the weights below {contents.wrapper!r} in {name}"]
    beside = sorted({key.partition(".")[0] for key in contents.rest})
    if beside:
        notes.append(f"tensors beside them are not weights: {', '.join(beside)}")
    return notes
