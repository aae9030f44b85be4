"""Values that the DCP reader stores in `Checkpoint.native` for the DCP writer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from zerotools.core.checkpoint import Checkpoint, Key
from zerotools.io.distcp.metadata import Item
from zerotools.runs.job_record import JobRecord


@dataclass(frozen=True, slots=True)
class DcpNative:
    """Values that the DCP reader stores for the DCP writer.

    `flat_keys` are DCP's names of the tensors. `paths` are the paths of keys in the saved state
    dict (planner_data), if recorded; `order` has all keys in the saved order. `blobs` are values
    that are not tensors. `tied` maps a key to the key with the same bytes. `attributes` are those
    of `.metadata` that torch's class does not have. `optimizers` are the flat key prefixes of the
    model's optimizers, `numbered` the names of parameters that an optimizer has by number.
    `directories` has the keys of each directory if there are several. `job` is the record of a
    zerotools job.
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
    """Return the native values of a DCP, or empty ones for another format."""
    return checkpoint.native if isinstance(checkpoint.native, DcpNative) else DcpNative()
