"""The Python interface: a thin lazy reader around a checkpoint. `import zerotools` is enough.

Nothing is read but metadata until a tensor's values are asked for. torch is imported only by
`Entry.torch` and by a `load_state_dict` that returns its tensors.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from zerotools import formats
from zerotools.core import dtypes
from zerotools.core.checkpoint import Checkpoint, Key, Tensor
from zerotools.core.dtypes import DType
from zerotools.core.errors import BadFile, BadRequest, Unsupported, ZerotoolsError

if TYPE_CHECKING:
    from zerotools.io.numeric.numpy_dtypes import Array
    from zerotools.ops.comparison.result import CheckpointDiff
    from zerotools.ops.salvage.salvage_plan import Salvage
    from zerotools.ops.verification.findings import Verification

__all__ = [
    "BadFile",
    "BadRequest",
    "Entry",
    "Reader",
    "Unsupported",
    "ZerotoolsError",
    "diff",
    "load_state_dict",
    "open",
    "salvage",
    "verify",
]

# Which role a bare name means: the first that the checkpoint has.
_BARE = ("param", "buffer", "param16")
_SHORT = {"fp16": "float16", "bf16": "bfloat16", "fp32": "float32"}


@dataclass(frozen=True, slots=True)
class Entry:
    """One tensor of a checkpoint, not read yet. `dtype` prints as torch's name for it."""

    key: Key
    _tensor: Tensor
    _checkpoint: Checkpoint

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
        """The values, as `dtype` if one is given; bfloat16 and float8 are types of ml_dtypes.

        Raises:
            BadFile: the tensor is incomplete, its file damaged, or the checkpoint one of which
                nothing can be made, such as one with files of two saves.
            Unsupported: no such type, or a cast that is not between floating-point types.
        """
        from zerotools.ops.conversions.conversion import refuse_blocked
        from zerotools.ops.execution.load_arrays import load

        refuse_blocked(self._checkpoint)
        return load(self._checkpoint, {self.key: _named(dtype) or self.dtype})[self.key]

    def torch(self, dtype: object = None) -> Any:
        """The values as a torch.Tensor on the CPU; raises like `numpy`."""
        chosen = _named(dtype) or self.dtype
        return _as_torch(self.numpy(chosen), chosen)


class Reader(Mapping[str | tuple[str, str], Entry]):
    """The tensors of a checkpoint by name.

    Names are those of the model's parameters and buffers, tied names included. `reader[name]` is
    the parameter (of a ZeRO run the fp32 master), else the buffer; `reader[name, role]` any other
    tensor, such as the role `exp_avg`.
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
                    return Entry(key, tensor, self.checkpoint)
        raise KeyError(name_and_role)

    def roles(self, name: str) -> list[str]:
        """The roles that there are for a name, such as `param` and `exp_avg`."""
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
    """Read the metadata of the checkpoint at `path`, in any format; `tag`, the file of rules
    `layout` and `section` are as for `zerotools inspect`. Where a checkpoint has several models and
    no section is named, each name has its section in front.

    Raises:
        BadRequest: there is nothing at `path`, or it has no such tag or section.
        BadFile: it is not a checkpoint, or a damaged or unfinished one.
        Unsupported: it is in a format that is not read.
    """
    rules = None if layout is None else Path(layout)
    checkpoint = formats.read_any(Path(path), tag=tag, layout=rules, section=section)
    formats.require_readable(checkpoint)
    return Reader(checkpoint)


def diff(
    a: str | os.PathLike[str],
    b: str | os.PathLike[str],
    *,
    role: str | Sequence[str] = (),
    include: str | Sequence[str] = (),
    rename: str | Sequence[str] = (),
    tolerance: str | None = None,
    adapter: str | os.PathLike[str] | None = None,
    tag: str | None = None,
    layout: str | os.PathLike[str] | None = None,
    section: str | None = None,
) -> CheckpointDiff:
    """Compare two checkpoints of any format; the options are those of the command `zerotools diff`,
    and each may be one string or several. Neither is merged, and memory stays below 256 MB. With
    `adapter`, `a` is compared with the sum of the base model `b` and this PEFT adapter.

    `is_equal`, `tensors`, `run`, `worst(most)` and `to_json()` of the result say what was found.

    Raises:
        BadRequest: one does not exist, an option is wrong, or nothing is left to compare.
        BadFile: one is not a checkpoint, or its metadata is damaged, or it changed while it was
            read. Tensors that cannot be read are told in the result.
        Unsupported: one is in a format that is not read.
    """
    from zerotools.ops.comparison import checkpoint_diff as comparison

    options = comparison.DiffOptions(
        roles=_several(role),
        include=_several(include),
        rename=_several(rename),
        tolerance=tolerance,
        adapter=None if adapter is None else Path(adapter),
        tag=tag,
        layout=None if layout is None else Path(layout),
        section=section,
    )
    return comparison.diff(Path(a), Path(b), options)


def _several(words: str | Sequence[str]) -> Sequence[str]:
    return (words,) if isinstance(words, str) else words


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
    """All tensors of a role by name, in memory: what `model.load_state_dict` takes.

    `param` includes the buffers. `dtype` is for floating-point tensors of 16 bits or more; the
    others keep their type. Tied names share one tensor. `framework` says whether torch tensors or
    numpy arrays are returned.

    Raises:
        BadRequest: there is nothing at `path`, no tensor of that role, or several models of which
            none is named by `section`.
        BadFile: it is not a checkpoint, or not wholly one.
        Unsupported: a format or a type that zerotools does not handle, or masters that are not
            those of the weights beside them.
    """
    from zerotools.ops.conversions.conversion import refuse_blocked, refuse_damaged_files
    from zerotools.ops.execution.load_arrays import load

    reader = open(path, tag=tag, layout=layout, section=section)
    formats.require_model(reader.checkpoint)
    refuse_blocked(reader.checkpoint)
    names = {name: reader[name] for name in reader} if role == "param" else _of_role(reader, role)
    if not names:
        raise BadRequest(f"{path} has no tensors of role {role}")
    chosen = _named(dtype)
    dtypes = {
        entry.key: chosen if chosen is not None and _is_retyped(entry.dtype) else entry.dtype
        for entry in names.values()
    }
    refuse_damaged_files(reader.checkpoint, dtypes)
    if role == "param":
        formats.format_of(reader.checkpoint).check_weights(reader.checkpoint)
    values: Mapping[Key, Any] = load(reader.checkpoint, dtypes)
    if framework == "torch":
        values = {key: _as_torch(array, dtypes[key]) for key, array in values.items()}
    return {name: values[entry.key] for name, entry in names.items()}


def verify(
    path: str | os.PathLike[str],
    *,
    tag: str | None = None,
    layout: str | os.PathLike[str] | None = None,
    section: str | None = None,
    against: str | os.PathLike[str] | None = None,
    write_manifest: str | os.PathLike[str] | bool = False,
    fast: bool = False,
    workers: int | None = None,
    max_memory: int = 256 * 2**20,
) -> Verification:
    """Check whether the checkpoint at `path` is whole, as the command `verify` does: `verdict` of
    what is returned is "whole", "unchecked" or "faulty", `findings` are sentences. With `fast` no
    tensor data is read. `against` is a manifest or another checkpoint to compare with.
    `write_manifest` writes the digests of what is there, to that file, or with True beside the
    checkpoint, if nothing is wrong. `max_memory` is in bytes, for the buffers of all `workers`
    (threads).

    Raises:
        BadRequest: there is nothing at `path`, it has no such tag or section, or the manifest is of
            another model.
        BadFile: it is not a checkpoint, or so damaged that its tensors are not known.
        Unsupported: it is in a format that is not read.
    """
    from zerotools.ops.execution.workers import MemoryBudget
    from zerotools.ops.verification import against as comparing
    from zerotools.ops.verification import digest_manifest
    from zerotools.ops.verification import verify as verification

    if fast and (against is not None or write_manifest):
        raise BadRequest("fast=True reads no data, and a manifest needs it; leave one of them out")
    rules = None if layout is None else Path(layout)
    given = verification.prepare(Path(path), tag=tag, layout=rules, section=section)
    budget = MemoryBudget(max_memory) if workers is None else MemoryBudget(max_memory, workers)
    other = (
        None
        if against is None
        else comparing.against(Path(against), budget, verified=given.files.on_disk)
    )
    digests = write_manifest is not False
    found = verification.verify(given, fast=fast, other=other, digests=digests, budget=budget)
    if found.manifest is not None:
        beside = digest_manifest.sidecar_of(given.files)
        file = beside if isinstance(write_manifest, bool) else Path(write_manifest)
        digest_manifest.write_digest_manifest(found.manifest, file, given.files)
    return found


def salvage(
    path: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    fill_from: str | os.PathLike[str] | None = None,
    dtype: str = "auto",
    rename: str | Sequence[str] = (),
    include: str | Sequence[str] = (),
    exclude: str | Sequence[str] = (),
    format: str = "safetensors",
    config_dir: str | os.PathLike[str] | None = None,
    tag: str | None = None,
    layout: str | os.PathLike[str] | None = None,
    section: str | None = None,
    dry_run: bool = False,
    overwrite: bool = False,
    max_memory: int = 2**30,
) -> Salvage:
    """Export the weights that are whole of the damaged checkpoint at `path` into the directory
    `out`, as the command `salvage` does, whose options these are. `is_complete` of what is returned
    says whether that is every weight, `left_out` names the others with the reason,
    `examined.holes` has the boxes that are lost by tensor, and `filled` what is from `fill_from`;
    where nothing is whole, nothing is written, and `conversion` is None. `max_memory` is in bytes.

    Raises:
        BadRequest: there is nothing at `path`, `out` exists, `fill_from` is of another model, or
            finite weights do not fit in the type.
        BadFile: it is no checkpoint, nothing says which tensors there are, or its files are of two
            saves.
        Unsupported: it is in a format that is not read.
    """
    from zerotools.ops.conversions.consolidate import refuse_overflow
    from zerotools.ops.conversions.conversion import check_output, perform
    from zerotools.ops.execution.workers import MemoryBudget
    from zerotools.ops.salvage import examine, preparation, salvage_plan

    options = salvage_plan.SalvageOptions(
        dtype=dtype,
        rename=_several(rename),
        include=_several(include),
        exclude=_several(exclude),
        format=format,
    )
    rules, other, config = (
        None if each is None else Path(each) for each in (layout, fill_from, config_dir)
    )
    budget = MemoryBudget(max_memory)
    given = examine.prepare(Path(path), tag=tag, layout=rules, section=section, stand_in=other)
    found = preparation.prepare_salvage(
        given, Path(out), options, fill_from=other, config_dir=config, budget=budget
    )
    if found.conversion is not None:
        check_output(found.conversion, overwrite=overwrite)
        if not dry_run:
            perform(found.conversion, budget=budget, overwrite=overwrite, check=refuse_overflow)
    return found


def _of_role(reader: Reader, role: str) -> dict[str, Entry]:
    keys = (key for key in reader.checkpoint.tensors if key.role == role)
    return {key.name: reader[key.name, role] for key in keys}


def _is_retyped(dtype: DType) -> bool:
    return dtype.is_float and dtype.bits >= 16


def _named(dtype: object) -> DType | None:
    """A type by `bf16`, `bfloat16`, torch.bfloat16, a numpy type or None."""
    if dtype is None or isinstance(dtype, DType):
        return dtype
    name = getattr(dtype, "__name__", None) if isinstance(dtype, type) else str(dtype)
    text = str(name).removeprefix("torch.")
    return dtypes.named(_SHORT.get(text, text))


def _as_torch(array: Array, dtype: DType) -> Any:
    """A tensor over the memory of `array`; torch does not know the types of ml_dtypes."""
    import torch

    element = getattr(torch, dtype.name)
    if array.size == 0:
        return torch.empty(array.shape, dtype=element)
    return torch.from_numpy(array.reshape(-1).view("u1")).view(element).reshape(array.shape)
