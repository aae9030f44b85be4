"""Explains the end of an attempt by the XIDs that were reported for its GPUs. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from zerotools.sensors.xids import GpuXid, in_words, is_fault
from zerotoolsd.queue.rows import AttemptRow, Fence

XidsByGpu = Mapping[str, Sequence[GpuXid]]


def with_xids(
    record: Mapping[str, Any], xids: XidsByGpu, gpu_name: Callable[[str], str]
) -> Mapping[str, Any]:
    """Return the record of an attempt with the reported XIDs in its cause."""
    if not xids:
        return record
    said = "; ".join(
        f"the driver reported {_listed(found)} of {gpu_name(uuid)}" for uuid, found in xids.items()
    )
    codes = {uuid: sorted({xid.code for xid in found}) for uuid, found in xids.items()}
    return {**record, "cause": f"{record.get('cause')}; {said}", "xids": codes}


def fences_of(attempt: AttemptRow, xids: XidsByGpu, now: float, seconds: float) -> Iterator[Fence]:
    """Yield a fence for each faulty GPU."""
    for uuid, found in xids.items():
        faults = [xid for xid in found if is_fault(xid.code)]
        if faults:
            yield Fence(
                gpu_uuid=uuid,
                since=now,
                until=now + seconds,
                boot_id=attempt.boot_id,
                job_id=attempt.job_id,
                attempt=attempt.number,
                why=f"the driver reported {_listed(faults)}",
            )


def _listed(xids: Sequence[GpuXid]) -> str:
    return ", ".join(in_words(code) for code in sorted({xid.code for xid in xids}))
