"""Reads the tensors in the safetensors files of a Hugging Face directory."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from zerotools.core.boxes import Box
from zerotools.core.dtypes import DType
from zerotools.core.errors import BadFile, BadRequest
from zerotools.core.hub_layout import HubBlock
from zerotools.formats.safetensors.header import read_header
from zerotools.io.huggingface.model_index import read_index
from zerotools.jobs.preflight.checkpoint_check import quantised_refusal

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
COMPARED_ELEMENTS = 1 << 22


@dataclass(frozen=True)
class HubTensor:
    """A tensor in the safetensors file `path`."""

    path: Path
    dtype: DType
    shape: tuple[int, ...]


def stored_tensors(directory: Path) -> dict[str, HubTensor]:
    """Return the tensors in the safetensors files of `directory`, keyed by name.

    Only the headers are read. As in transformers, `model.safetensors` is used if it exists, else
    the files that the index names.

    Raises:
        BadRequest: the directory has no safetensors.
        BadFile: the index or a file is damaged.
    """
    single, index = directory / SINGLE, directory / INDEX
    if single.is_file():
        paths = [single]
    elif index.is_file():
        paths = [directory / file for file in dict.fromkeys(read_index(index).values())]
    else:
        raise BadRequest(f"model.path: {directory} has neither {SINGLE} nor {INDEX}")
    found = {}
    for path in paths:
        try:
            entries = read_header(path).entries
        except OSError as error:
            raise BadFile(f"model.path: {path} cannot be read: {error.strerror}") from None
        for name, entry in entries.items():
            found[name] = HubTensor(path, entry.dtype, entry.shape)
    return found


def refuse_quantised(stored: Mapping[str, HubTensor], config: Any) -> None:
    """Raise BadRequest if the stored weights are quantised."""
    tensors = ((tensor.path, name, tensor.dtype) for name, tensor in stored.items())
    sentence = quantised_refusal(tensors, vars(config))
    if sentence is not None:
        raise BadRequest(sentence)


class StoredReader:
    """Reads blocks of stored tensors. Files stay open until `stack` closes."""

    def __init__(self, stored: Mapping[str, HubTensor], stack: ExitStack) -> None:
        self._stored = stored
        self._stack = stack
        self._open: dict[Path, Any] = {}

    def read(self, block: HubBlock) -> torch.Tensor:
        """Read the values of `block`, and return them in the shape of its box.

        Only its rows are read.

        Raises:
            BadFile: the file cannot be read.
        """
        stored = self._slice(self._stored[block.name].path, block.name)
        if not block.shape:
            return stored[...].reshape(block.box.shape)
        row = max(1, torch.Size(block.shape[1:]).numel())
        first = block.offset // row
        rows = stored[first : block.last // row + 1].contiguous()
        begin = rows.storage_offset() + block.offset - first * row
        return rows.as_strided(block.box.shape, block.steps, begin)

    def _slice(self, path: Path, name: str) -> Any:
        try:
            if path not in self._open:
                self._open[path] = self._stack.enter_context(safe_open(path, framework="pt"))
            return self._open[path].get_slice(name)
        except (SafetensorError, OSError) as error:
            raise BadFile(f"model.path: {path} cannot be read: {error}") from None


def same_values(stored: Mapping[str, HubTensor], one: HubBlock, other: HubBlock) -> bool:
    """Return whether two blocks of the same shape have equal values.

    The blocks are read a few rows at a time, so that little memory is needed.
    """
    if one == other or not one.box.shape:
        return True
    rows = max(1, COMPARED_ELEMENTS // max(1, torch.Size(one.box.shape[1:]).numel()))
    with ExitStack() as stack:
        reader = StoredReader(stored, stack)
        for first in range(0, one.box.shape[0], rows):
            count = min(rows, one.box.shape[0] - first)
            box = Box((first, *one.box.start[1:]), (count, *one.box.shape[1:]))
            parts = [block.part(box) for block in (one, other)]
            values = [reader.read(part) for part in parts if part is not None]
            if not torch.equal(*values):
                return False
    return True
