"""Values that the DCP reader stores in `Checkpoint.native` for the DCP writer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from zerotools.core.checkpoint import Checkpoint, Key
from zerotools.io.distcp.metadata import Item

if TYPE_CHECKING:  # few checkpoints are of a job
    from zerotools.runs.training_record import JobRecord


@dataclass(frozen=True, slots=True)
class DcpNative:
    """Values that the DCP reader stores for the DCP writer.

    Attributes:
        flat_keys: key of each tensor -> its flat key in the DCP.
        paths: flat key -> path in the saved state dict (planner_data); None if paths are not
            recorded.
        order: all flat keys in the saved order.
        blobs: flat key -> value, for the values that are not tensors.
        tied: flat key -> an earlier flat key with the same bytes.
        attributes: the attributes in `.metadata` that torch's class does not have.
        optimizers: the flat key prefixes of the optimizers that train the model.
        numbered: the number of a parameter in an optimizer -> the name of the parameter.
        directories: directory -> the flat keys in it, if the checkpoint has several directories.
        job: the record of the zerotools job that saved the checkpoint.
    """

    flat_keys: Mapping[Key, str] = field(default_factory=dict)
    paths: Mapping[str, tuple[str | int, ...]] | None = None
    order: tuple[str, ...] = ()
    blobs: Mapping[str, Item] = field(default_factory=dict)
    tied: Mapping[str, str] = field(default_factory=dict)
    attributes: tuple[str, ...] = ()
    optimizers: tuple[str, ...] = ()
    numbered: Mapping[int, str] = field(default_factory=dict)
    directories: Mapping[str, frozenset[str]] = field(default_factory=dict)
    job: JobRecord | None = None


def native_of(checkpoint: Checkpoint) -> DcpNative:
    """Return the values that the DCP reader stored; an empty `DcpNative` if another format's reader
    read the checkpoint.
    """
    return checkpoint.native if isinstance(checkpoint.native, DcpNative) else DcpNative()
