"""An opened file with its contents, and the keys of its tensors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from zerotools.core.checkpoint import Key, Tensor
from zerotools.core.errors import ZerotoolsError
from zerotools.formats.torchfile.schema.param_numbers import numbered_name
from zerotools.formats.torchfile.schema.state_dict import FileContents, sort_tensors
from zerotools.io.torchzip.pt_file import TorchFile

FORMAT = "torchfile"


@dataclass(frozen=True, slots=True)
class TorchFileNative:
    """The names of the parameters that the optimizer has by number."""

    numbered: Mapping[int, str]


class OpenedFile(NamedTuple):
    """A file and its contents."""

    file: TorchFile
    contents: FileContents


def open_file(root: Path, name: str) -> OpenedFile:
    """Return the file `root / name` with its contents; no tensor data is read.

    Raises:
        BadFile: it is missing or damaged, or holds no tensors.
        Unsupported: it does not hold a tree of tensors.
    """
    file = TorchFile.open(root, name, alone=True)
    try:
        return OpenedFile(file, sort_tensors(file.tree))
    except ZerotoolsError as error:
        raise type(error)(f"{file.path}: {error}") from None


def keyed(
    weights: Mapping[str, Tensor],
    moments: Mapping[tuple[str | int, str], Tensor],
    numbered: Mapping[int, str],
    tied: Mapping[str, str],
) -> dict[Key, Tensor]:
    """Return weights but for aliases, then the optimizer's, by name where its numbers have one."""
    tensors = {Key(n, "param"): tensor for n, tensor in weights.items() if n not in tied}
    for (parameter, role), tensor in moments.items():
        if isinstance(parameter, int):
            parameter = numbered.get(parameter, numbered_name(parameter))
        tensors[Key(parameter, role)] = tensor
    return tensors
