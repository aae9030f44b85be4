"""The data model: a checkpoint is named tensors, each a set of boxes in files.

Invariants, proved by `zerotools.ops.execution.plan_copies` before a byte is moved:

- every element of every tensor is in at least one chunk;
- distinct chunks of a tensor never overlap; chunks with the same box are replicas;
- every chunk is inside its file.

Padding is not part of the model: it is bytes that no chunk claims. A reader returns a `Checkpoint`;
a writer's `lay_out` returns a `Target` (`core.target`), a checkpoint with files that are not
written yet.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from zerotools.core.boxes import Box, row_major_strides
from zerotools.core.dtypes import DType


class Key(NamedTuple):
    """The identity of a tensor: its name in the model, and its role.

    Common roles are `param` (for ZeRO the fp32 master), `param16` (a 16-bit copy of a master),
    `buffer`, `exp_avg`, `exp_avg_sq`, `step` and `momentum_buffer`; others are possible.
    """

    name: str
    role: str

    def __str__(self) -> str:
        return self.name if self.role == "param" else f"{self.name} ({self.role})"


@dataclass(frozen=True, slots=True)
class Chunk:
    """The bytes of one block of a tensor. The block is `box`; its first byte is at byte `offset`
    of `file`, a path relative to the checkpoint's root.

    `strides` are in elements, one per dimension; None means row-major and contiguous.
    """

    box: Box
    file: str
    offset: int
    strides: tuple[int, ...] | None = None

    @property
    def is_contiguous(self) -> bool:
        """True if the elements lie in row-major order without gaps."""
        if self.strides is None:
            return True
        dense = row_major_strides(self.box.shape)
        return all(
            n == 1 or a == b for n, a, b in zip(self.box.shape, self.strides, dense, strict=True)
        )

    def extent(self, dtype: DType) -> int:
        """Return the number of bytes in the file from `offset` to the end of the chunk's last
        element.
        """
        if self.box.is_empty:
            return 0
        strides = self.strides or row_major_strides(self.box.shape)
        last = sum((n - 1) * s for n, s in zip(self.box.shape, strides, strict=True))
        return (last + 1) * dtype.itemsize


class ChunksOnDemand(Sequence[Chunk]):
    """The chunks of a tensor, computed anew at each access, so that no list of them is kept in
    memory.
    """

    __slots__ = ("_make",)

    def __init__(self, make: Callable[[], list[Chunk]]) -> None:
        self._make = make

    def __iter__(self) -> Iterator[Chunk]:
        return iter(self._make())

    def __len__(self) -> int:
        return len(self._make())

    def __getitem__(self, index):  # type: ignore[no-untyped-def]  # int and slice alike
        return self._make()[index]

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle the chunks themselves instead of the function `make` that computes them."""
        return tuple, (tuple(self),)


@dataclass(frozen=True, slots=True)
class ChunkBox:
    """A chunk, and a block `box` that lies inside this chunk, in the tensor's coordinates."""

    chunk: Chunk
    box: Box


@dataclass(frozen=True, slots=True)
class Tensor:
    """A logical tensor, and the chunks that hold its elements. `chunks` may be computed at each
    access.
    """

    dtype: DType
    shape: tuple[int, ...]
    chunks: Sequence[Chunk]

    @property
    def numel(self) -> int:
        return Box.whole(self.shape).numel

    @property
    def nbytes(self) -> int:
        """The number of bytes that the tensor's elements need, without padding and replicas."""
        return self.numel * self.dtype.itemsize


@dataclass(slots=True, eq=False)  # making a frozen object takes seven times as long
class Opaque:
    """An object of a foreign class, described by a pickle. The class was not imported and no code
    was run.

    `args` are the arguments that the pickle passes to the constructor. `state` is the value that
    the pickle assigns to the new object; None if the pickle assigns nothing. `called` is True if
    the pickle calls `name(*args)`, and False if it creates an instance with `name.__new__`. If the
    object is written again, the original library loads an equal object.

    Two values are equal only if they are the same object. A comparison by value would
    not end for an object that contains itself, and could take very long for objects that share
    parts.
    """

    module: str
    name: str
    args: tuple[Any, ...] = ()
    state: Any = None
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    items: Sequence[tuple[Any, Any]] = ()
    appended: Sequence[Any] = ()
    called: bool = False


@dataclass(frozen=True, slots=True)
class TensorRef:
    """A reference in `Checkpoint.state` to a tensor that is in `Checkpoint.tensors`."""

    key: Key


@dataclass(frozen=True, slots=True)
class Origin:
    """The origin of a checkpoint: where it was read, and which program saved it. A field that the
    files do not record is None.

    Attributes:
        format: the name of the format, such as "dcp" or "safetensors".
        path: the directory or file that was read.
        title: the kind of checkpoint for users, if the name `format` is not precise enough.
        precision: the dtype in which the run computes.
        notes: sentences for the user ("took step-40, the newest of 3 checkpoints").
        question: a sentence that asks the user to choose one of several models in the checkpoint.
            No model can be exported before this choice. It is None if there is only one model.
        refusal: the reason why no output can be made from the files; None if an output can be made.
    """

    format: str
    path: Path
    framework_version: str | None = None
    world_size: int | None = None
    stage: int | None = None
    step: int | None = None
    tag: str | None = None
    other_tags: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    title: str | None = None
    precision: DType | None = None
    question: str | None = None
    refusal: str | None = None


@dataclass(frozen=True, slots=True)
class Problem:
    """A defect of a checkpoint that can still be read.

    Attributes:
        file: the damaged file, relative to the checkpoint's root.
        prevents_output: True if the defect prevents a complete output.
        is_loss: True if bytes of the file are lost but its other bytes are valid; False, for
            example, if the file belongs to another save or rank.
        is_unread: True if only the name of `tensor` is known. An output that would contain this
            tensor is refused; everything else can be used.
    """

    message: str
    file: str | None = None
    tensor: str | None = None
    prevents_output: bool = False
    is_loss: bool = False
    is_unread: bool = False


class Stamp(NamedTuple):
    """The identity of a file when it was first read. It consists of the size in bytes, the time of
    the last change, and the device and inode numbers (0 if these are not stable).
    """

    size: int
    mtime_ns: int
    device: int = 0
    inode: int = 0


@dataclass(frozen=True)
class Checkpoint:
    """Named tensors in the files below the directory `root`, and everything else that was saved
    with them.

    Attributes:
        aliases: each tied name -> the name under which its tensor is stored. The checkpoint may
            lack this tensor.
        state: a tree of plain values, `TensorRef` and `Opaque`.
        files: each file that holds a chunk -> its size in bytes. The directory may contain other
            files.
        model_sidecars: the model's files without tensors (config.json, tokenizer), under the names
            that they have next to an export. The writer may add more.
        own_config: the config.json that was found with the checkpoint. Its quantisation settings
            determine how the checkpoint's bytes are read.
        stamps: the absolute path of every file that was read -> the identity of the file before its
            first byte was read. Empty in a `Target`.
        native: a value that the format's reader stores for the writer of the same format. No other
            code uses it.
        archives: {file: {offset: length}}, in bytes: the positions of archives that contain no
            elements, so that no chunk points to them.
        optimizer_checkpoint: the checkpoint that was read from a separate optimizer file next to
            the model.
    """

    root: Path
    tensors: Mapping[Key, Tensor]
    origin: Origin
    aliases: Mapping[str, str] = field(default_factory=dict)
    state: Mapping[str, Any] = field(default_factory=dict)
    files: Mapping[str, int] = field(default_factory=dict)
    model_sidecars: Mapping[str, Path] = field(default_factory=dict)
    own_config: Path | None = None
    problems: Sequence[Problem] = ()
    stamps: Mapping[Path, Stamp] = field(default_factory=dict)
    native: object = None
    archives: Mapping[str, Mapping[int, int]] = field(default_factory=dict)
    optimizer_checkpoint: Checkpoint | None = None

    def path_of(self, chunk: Chunk) -> Path:
        return self.root / chunk.file
