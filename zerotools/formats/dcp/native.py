"""What is kept of a DCP for its own writer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from zerotools.core.checkpoint import Checkpoint, Key
from zerotools.io.distcp.metadata import Item
from zerotools.runs.record import JobRecord


@dataclass(frozen=True, slots=True)
class DcpNative:
    """`flat_keys` are DCP's names of the tensors, `paths` where each key lay in the state dict that
    was saved (planner_data), if that was recorded, and `order` all keys as they were saved. `blobs`
    are the values that are not tensors, `tied` the keys that name another's bytes. `attributes` are
    those of `.metadata` that torch's own does not have. `optimizers` is what the keys of the
    model's optimizers begin with, and `numbered` the names of the parameters that one has by
    number. `directories` has the keys of each where there are several. `job` is the record of a
    zerotools job."""

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
    """That of a DCP; of a checkpoint of another format, one with nothing in it."""
    return checkpoint.native if isinstance(checkpoint.native, DcpNative) else DcpNative()
