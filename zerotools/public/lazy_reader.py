"""A lazy reader of a checkpoint.

Opening reads only metadata. The values of a tensor are read when they are accessed. torch is
imported only by `Entry.torch` and by a `load_state_dict` that returns torch tensors.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from zerotools import formats
from zerotools.core import dtypes
from zerotools.core.checkpoint import Checkpoint, Key, Tensor
from zerotools.core.dtypes import DType
from zerotools.core.errors import BadRequest
from zerotools.io.stores.parse_url import path_of

if TYPE_CHECKING:
    from zerotools.io.numeric.dtype_casts import Array
    from zerotools.ops.quantised.quantised_weights import Quantisation

# Which role a bare name means: the first that the checkpoint has.
_BARE = ("param", "buffer", "param16")
_SHORT = {"fp16": "float16", "bf16": "bfloat16", "fp32": "float32"}


@dataclass(frozen=True, slots=True)
class Entry:
    """One tensor of a checkpoint. Its values are read when `numpy` or `torch` is called. `dtype`
    prints like a dtype of torch."""

    key: Key
    _tensor: Tensor
    _reader: Reader = field(repr=False, compare=False)

    @property
    def shape(self) -> tuple[int, ...]:
        return self._tensor.shape

    @property
    def dtype(self) -> DType:
        return self._tensor.dtype

    @property
    def nbytes(self) -> int:
        return self._tensor.nbytes

    def numpy(self, dtype: object = None) -> Array:
        """Return the values as a numpy array, converted to `dtype` if it is given.

        bfloat16 and float8 are dtypes of ml_dtypes. If the tensor is the payload of a quantised
        weight and is converted to another dtype, the result has the values of the weight.

        Raises:
            BadFile: the tensor is incomplete, its file is damaged, or the whole checkpoint cannot
                be used, for example because it has files of two saves.
            Unsupported: zerotools does not know the dtype; the cast is not between floating-point
                dtypes; or the tensor is a payload or a scale, but its weight cannot be computed.
        """
        from zerotools.ops.conversions.conversion import refuse_blocked
        from zerotools.ops.execution.load_arrays import load_tensors
        from zerotools.ops.quantised.dequantise import with_values_of

        source = self._reader.checkpoint
        refuse_blocked(source, but_for_names=True)
        chosen = _named(dtype) or self.dtype
        if chosen != self.dtype:
            source = with_values_of(source, self._reader.quantisation, self.key, chosen)
        return load_tensors(source, {self.key: chosen})[self.key]

    def torch(self, dtype: object = None) -> Any:
        """Return the values as a torch.Tensor on the CPU. Raises the errors of `numpy`."""
        chosen = _named(dtype) or self.dtype
        return _as_torch(self.numpy(chosen), chosen)


class Reader(Mapping[str | tuple[str, str], Entry]):
    """The tensors of a checkpoint keyed by name.

    The names are the names of the model's parameters and buffers, including tied names.
    `reader[name]` is the parameter with this name (for a ZeRO run its fp32 master), or else the
    buffer. `reader[name, role]` is the tensor with this name and role. A role is a kind of tensor,
    such as `exp_avg`.
    """

    def __init__(self, checkpoint: Checkpoint) -> None:
        self.checkpoint = checkpoint
        tensors = checkpoint.tensors
        names = dict.fromkeys(key.name for key in tensors if key.role in _BARE)
        known = {a: None for a, name in checkpoint.aliases.items() if name in names}
        self._names = {**names, **known}

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def __getitem__(self, name_and_role: str | tuple[str, str]) -> Entry:
        name, roles = (
            (name_and_role, _BARE)
            if isinstance(name_and_role, str)
            else (name_and_role[0], name_and_role[1:])
        )
        holder = self.checkpoint.aliases.get(name, name)
        for candidate in (name, holder):
            for role in roles:
                key = Key(candidate, role)
                tensor = self.checkpoint.tensors.get(key)
                if tensor is not None:
                    return Entry(key, tensor, self)
        raise KeyError(name_and_role)

    @cached_property
    def quantisation(self) -> Quantisation:
        """The quantised weights of the checkpoint, each with the kind of its quantisation."""
        from zerotools.ops.quantised.find_quantised import find_quantised

        return find_quantised(self.checkpoint)

    def roles(self, name: str) -> list[str]:
        """Return the roles of the tensors with this name. A role is a kind of tensor, such as
        `param` or `exp_avg`."""
        holder = self.checkpoint.aliases.get(name, name)
        return [key.role for key in self.checkpoint.tensors if key.name in (name, holder)]

    def __repr__(self) -> str:
        origin = self.checkpoint.origin
        return f"<zerotools.Reader of {origin.path}: {origin.format}, {len(self)} names>"


def open(
    path: str | os.PathLike[str],
    *,
    tag: str | None = None,
    layout: str | os.PathLike[str] | None = None,
    section: str | None = None,
) -> Reader:
    """Read the metadata of the checkpoint at `path`, in any format.

    `tag`, `section` and `layout` have the same meaning as the options of `zerotools inspect`. If a
    checkpoint has several models and `section` is None, each name begins with its section.

    Raises:
        BadRequest: `path` does not exist, or it lacks the tag or section.
        BadFile: `path` is not a checkpoint, or the checkpoint is damaged or incomplete.
        Unsupported: the format cannot be read.
    """
    rules = None if layout is None else Path(layout)
    checkpoint = formats.read_any(path_of(path), tag=tag, layout=rules, section=section)
    formats.require_readable(checkpoint)
    return Reader(checkpoint)


def load_state_dict(
    path: str | os.PathLike[str],
    *,
    dtype: object = None,
    role: str = "param",
    tag: str | None = None,
    layout: str | os.PathLike[str] | None = None,
    section: str | None = None,
    framework: Literal["torch", "numpy"] = "torch",
) -> dict[str, Any]:
    """Load all tensors of one role into memory. Return them keyed by name, in the form that
    `model.load_state_dict` takes.

    The role `param` includes the buffers. `dtype` applies to floating-point tensors of 16 bits or
    more. Other tensors keep their dtype, and so do tensors that transformers keeps in fp32 in a
    16-bit model. With a `dtype`, quantised weights are dequantised. Without a `dtype`, payloads and
    scales are returned unchanged. Tied names share one tensor. `framework` selects torch tensors or
    numpy arrays.

    Raises:
        BadRequest: `path` does not exist, has no tensor with this role, or has several models
            although `section` was not given.
        BadFile: `path` is not a checkpoint, or it is incomplete.
        Unsupported: zerotools cannot read the format or the dtype, or a 16-bit weight is not equal
            to the cast of its fp32 master.
    """
    from zerotools.ops.conversions.consolidate import cast_types
    from zerotools.ops.conversions.conversion import refuse_blocked, refuse_damaged_files
    from zerotools.ops.execution.load_arrays import load_tensors
    from zerotools.ops.quantised.dequantise import dequantise_checkpoint

    reader = open(path, tag=tag, layout=layout, section=section)
    formats.require_model(reader.checkpoint)
    refuse_blocked(reader.checkpoint)
    chosen = _named(dtype)
    if chosen is not None and role == "param":
        found = reader.quantisation
        reader = (
            Reader(dequantise_checkpoint(reader.checkpoint, found)) if found.is_there else reader
        )
    names = {name: reader[name] for name in reader} if role == "param" else _of_role(reader, role)
    if not names:
        raise BadRequest(f"{path} has no tensors of role {role}")
    cast = cast_types(reader.checkpoint, chosen)
    tensors = reader.checkpoint.tensors
    dtypes = {entry.key: cast(entry.key, tensors[entry.key]) for entry in names.values()}
    refuse_damaged_files(reader.checkpoint, dtypes)
    if role == "param":
        formats.format_of(reader.checkpoint).check_weights(reader.checkpoint)
    values: Mapping[Key, Any] = load_tensors(reader.checkpoint, dtypes)
    if framework == "torch":
        values = {key: _as_torch(array, dtypes[key]) for key, array in values.items()}
    return {name: values[entry.key] for name, entry in names.items()}


def _of_role(reader: Reader, role: str) -> dict[str, Entry]:
    keys = (key for key in reader.checkpoint.tensors if key.role == role)
    return {key.name: reader[key.name, role] for key in keys}


def _named(dtype: object) -> DType | None:
    """Return the DType for `dtype`, which is None, a name such as `bf16` or `bfloat16`, or a dtype
    of torch or numpy."""
    if dtype is None or isinstance(dtype, DType):
        return dtype
    name = getattr(dtype, "__name__", None) if isinstance(dtype, type) else str(dtype)
    text = str(name).removeprefix("torch.")
    return dtypes.dtype_named(_SHORT.get(text, text))


def _as_torch(array: Array, dtype: DType) -> Any:
    """Return a torch tensor that shares the memory of `array`. The tensor is made from the bytes,
    because torch does not know the dtypes of ml_dtypes."""
    import torch

    element = getattr(torch, dtype.name)
    if array.size == 0:
        return torch.empty(array.shape, dtype=element)
    return torch.from_numpy(array.reshape(-1).view("u1")).view(element).reshape(array.shape)
