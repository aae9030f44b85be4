"""The values of a DCP that only the writer of DCPs needs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from zerotools.core.checkpoint import Checkpoint, Key
from zerotools.io.distcp.metadata import Item
from zerotools.runs.job_record import JobRecord


@dataclass(frozen=True, slots=True)
class DcpNative:
    """The values of a DCP that only the writer of DCPs needs.

    `flat_keys` are DCP's names of the tensors. `paths` are the positions of keys in the saved state
    dict (planner_data), if recorded, and `order` all keys in the saved order. `blobs` are the
    values that are not tensors, `tied` the keys that name another's bytes. `attributes` are those
    of `.metadata` that torch's class does not have. `optimizers` are the prefixes of the keys of
    the model's optimizers, and `numbered` the names of parameters that one has by number.
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
    """Return the native values of a DCP; for other formats, an empty one."""
    return checkpoint.native if isinstance(checkpoint.native, DcpNative) else DcpNative()
