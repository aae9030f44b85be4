"""Open one torch file, and assign keys to its tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from zerotools.core.checkpoint import Key, Tensor
from zerotools.core.errors import ZerotoolsError
from zerotools.formats.torch_optimizers import (
    NAMED_BY_SHAPE,
    ORDER_UNKNOWN,
    Shape,
    names_by_shape,
)
from zerotools.formats.torchfile.sharded_tensors import PartialTensor
from zerotools.formats.torchfile.sort_state_dict import FileContents, sort_tensors
from zerotools.io.torchzip.pt_file import TorchFile

FORMAT = "torchfile"


@dataclass(frozen=True, slots=True)
class TorchFileNative:
    """Values that the reader stores for the writer.

    `numbered` is number of a parameter in the optimizer -> name of the parameter.
    `unread_optimizers` are the keys of the optimizers if the file has several, which are not read.
    """

    numbered: Mapping[int, str]
    unread_optimizers: tuple[str, ...] = ()


class OpenedFile(NamedTuple):
    """An opened torch file, with its tensors sorted into weights, optimizer state and others."""

    file: TorchFile
    contents: FileContents


def open_file(root: Path, name: str) -> OpenedFile:
    """Open the torch file `root / name` and sort its tensors into weights, optimizer state and
    others. No tensor data is read.

    Raises:
        BadFile: the file is missing or damaged, or holds no tensors.
        Unsupported: the file does not hold a tree of tensors.
    """
    file = TorchFile.open(root, name, alone=True)
    try:
        return OpenedFile(file, sort_tensors(file.tree))
    except ZerotoolsError as error:
        raise type(error)(f"{file.path}: {error}") from None


def with_keys(
    weights: Mapping[str, Tensor],
    moments: Mapping[tuple[str | int, str], Tensor],
    numbered: Mapping[int, str],
    tied: Mapping[str, str],
) -> dict[Key, Tensor]:
    """Return the weights, without tied names, and the optimizer's tensors in one dict.

    A parameter that the optimizer identifies by number gets its name from `numbered`. A number that
    `numbered` lacks gets an artificial name (`numbered_name`).
    """
    tensors = {Key(n, "param"): tensor for n, tensor in weights.items() if n not in tied}
    for (parameter, role), tensor in moments.items():
        if isinstance(parameter, int):
            parameter = numbered.get(parameter, numbered_name(parameter))
        tensors[Key(parameter, role)] = tensor
    return tensors


Moments = Mapping[tuple[str | int, str], PartialTensor]


def numbered_name(number: int) -> str:
    """Return an artificial name, made from the number, for a parameter that the optimizer
    identifies only by number.
    """
    return f"optimizer.state.{number}"


def names_by_number(
    groups: Sequence[Any], moments: Moments, weights: Mapping[str, Shape]
) -> tuple[dict[int, str], str | None]:
    """Return the names of the parameters that a torch optimizer identifies by number, and a note
    for the user, or None.

    The groups have names (`param_names`, torch 2.6 and later) if the optimizer was created with
    named parameters. Without names in the groups, the result is empty unless exactly one weight
    fits the shapes of each parameter's state. `weights` are the weights with floating-point dtypes.
    """
    named = _recorded_names(groups)
    if named is not None:
        return named, None
    state: dict[int, dict[str, Shape]] = {}
    for (parameter, role), pieces in moments.items():
        if isinstance(parameter, int):
            state.setdefault(parameter, {})[role] = pieces.shape
    if not state:
        return {}, None
    numbers = [number for group in groups for number in _numbers(group) or ()]
    found = names_by_shape(numbers or list(state), state, weights)
    return found, NAMED_BY_SHAPE if found else ORDER_UNKNOWN


def float_shapes(weights: Mapping[str, PartialTensor]) -> dict[str, Shape]:
    """Return the shapes of the weights of floating-point dtypes."""
    return {name: pieces.shape for name, pieces in weights.items() if pieces.dtype.is_float}


def _recorded_names(groups: Sequence[Any]) -> dict[int, str] | None:
    names: dict[int, str] = {}
    for group in groups:
        numbers = _numbers(group)
        said = None if numbers is None else group.get("param_names")
        if numbers is None or not isinstance(said, list) or len(said) != len(numbers):
            return None
        names |= {number: str(name) for number, name in zip(numbers, said, strict=True)}
    return names or None


def _numbers(group: Any) -> list[int] | None:
    numbers = group.get("params") if isinstance(group, dict) else None
    if not isinstance(numbers, list) or not all(type(number) is int for number in numbers):
        return None
    return numbers
