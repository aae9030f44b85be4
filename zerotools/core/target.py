"""A checkpoint that is planned but not written: the position of each of its bytes.

A writer's `lay_out` returns a `Target`: a checkpoint with files that do not exist yet, and the
bytes of each file that no tensor fills. Readers do not use this module.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from zerotools.core.checkpoint import Checkpoint, Key, Tensor
from zerotools.core.training_state import TrainingState


@dataclass(frozen=True, slots=True)
class LiteralBytes:
    """Bytes of an output file that the writer knows before any tensor is copied, such as a
    header.
    """

    offset: int
    data: bytes


@dataclass(frozen=True, slots=True)
class CarriedBytes:
    """Bytes of an output file that are copied unchanged from a file of the source."""

    offset: int
    source: Path
    source_offset: int
    length: int


@dataclass(frozen=True, slots=True)
class ZeroBytes:
    """`length` zero bytes in an output file: padding that a checksum includes."""

    offset: int
    length: int


@dataclass(frozen=True, slots=True)
class Checksum:
    """A CRC-32 of the bytes [start, start+length) of an output file. It is written as a
    little-endian uint32, as zlib computes it, at each `target_offset`.

    The plan knows each byte of this range: it belongs to a chunk or a literal, is copied from the
    source, or is zero.
    """

    start: int
    length: int
    target_offset: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class FilePlan:
    """One output file: its size in bytes, and all of its bytes that do not belong to a chunk of a
    tensor.
    """

    size: int
    literals: Sequence[LiteralBytes] = ()
    carried: Sequence[CarriedBytes] = ()
    checksums: Sequence[Checksum] = ()
    zeros: Sequence[ZeroBytes] = ()


@dataclass(frozen=True, slots=True)
class Dropped:
    """A part of the source that the output does not contain.

    Attributes:
        what: the role of a tensor (`exp_avg`), or a part of the training state (`lr_scheduler`).
        why: the reason, as the end of a sentence.
    """

    what: str
    why: str


@dataclass(frozen=True)
class Target:
    """A checkpoint that is planned but not written: the position of each of its bytes.

    Attributes:
        checkpoint: the planned checkpoint; `checkpoint.root` is the destination. While the files
            are being written, they have the same relative paths in a staging directory.
        with_manifest: true for a job's checkpoint. Its `MANIFEST.json` is written after all other
            files.
        notes: sentences for the user about omissions and changes.
        dropped: the parts of the source that the format cannot hold.
        carried: tensors that a reader finds in the output, but that are not copied tensor by
            tensor: their bytes are literals, or are copied as part of a file.
        sources: tensors that this target adds to the source, or replaces in it, such as 16-bit
            weights that are cast from masters.
        unlisted: tensors of the target that a reader of the output does not list, because they
            repeat other tensors.
        target_keys: tensor of the source -> its keys in the target, if these differ because each
            model-parallel rank has a shard of the tensor.
        compared: a function that takes the checkpoint as read from the output, and returns its
            tensors under the target's keys; None if the reader itself uses these keys.
    """

    checkpoint: Checkpoint
    files: Mapping[str, FilePlan]
    with_manifest: bool = False
    notes: tuple[str, ...] = ()
    carried: Mapping[Key, Tensor] = field(default_factory=dict)
    sources: Mapping[Key, Tensor] = field(default_factory=dict)
    dropped: tuple[Dropped, ...] = ()
    unlisted: frozenset[Key] = frozenset()
    target_keys: Mapping[Key, tuple[Key, ...]] = field(default_factory=dict)
    compared: Callable[[Checkpoint], Mapping[Key, Tensor]] | None = None


WEIGHTS = ("param", "buffer")
LOOSE = "state"
"""The role of tensors in the client state, which are neither weights nor optimizer state."""


def extra_roles(source: Checkpoint, training: TrainingState) -> list[str]:
    """Return all roles of tensors that are not weights: 16-bit copies, and the tensors and numbers
    of the optimizer.
    """
    keys = (*source.tensors, *training.scalars)
    return list(dict.fromkeys(key.role for key in keys if key.role not in (*WEIGHTS, LOOSE)))


def optimizer_roles(source: Checkpoint) -> list[str]:
    """Return the kinds of optimizer tensors in the checkpoint, such as `exp_avg`."""
    roles = dict.fromkeys(key.role for key in source.tensors)
    return [role for role in roles if role not in (*WEIGHTS, "param16", LOOSE)]


def state_words(source: Checkpoint, training: TrainingState) -> list[str]:
    """Return the name of each part of the training state that has a value, such as
    `lr_scheduler`."""
    counters = (training.steps, training.skipped, training.samples)
    there = {
        "param_groups": training.groups,
        "lr_scheduler": training.lr_scheduler is not None,
        "loss_scale": training.loss_scale,
        "steps": any(counter is not None for counter in counters),
        "ds_config": training.ds_config is not None,
        "client": training.client or any(key.role == LOOSE for key in source.tensors),
        "frozen": training.frozen,
    }
    return [word for word, value in there.items() if value]
