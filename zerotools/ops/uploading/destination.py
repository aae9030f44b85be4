"""Whatever a command writes: to a disk, or to a store."""

from __future__ import annotations

from collections.abc import Callable

from zerotools.io.files.open_source import RemotePath
from zerotools.ops.conversions.conversion import Conversion, check_output, perform
from zerotools.ops.execution.execute import WriteReport
from zerotools.ops.execution.workers import MemoryBudget


def write(
    conversion: Conversion,
    *,
    budget: MemoryBudget,
    overwrite: bool,
    verify: bool = False,
    resume: bool = False,
    on_bytes: Callable[[int], None] = lambda _: None,
    check: Callable[[WriteReport], None] = lambda _: None,
) -> WriteReport:
    """Write by `perform` or `perform_upload`."""
    carry_out = perform
    if isinstance(conversion.destination, RemotePath):
        from zerotools.ops.uploading.upload import perform_upload

        carry_out = perform_upload
    return carry_out(
        conversion,
        budget=budget,
        overwrite=overwrite,
        verify=verify,
        resume=resume,
        on_bytes=on_bytes,
        check=check,
    )


def check_write(conversion: Conversion, *, overwrite: bool, resume: bool = False) -> None:
    """Check by `check_output` or `check_upload`."""
    if isinstance(conversion.destination, RemotePath):
        from zerotools.ops.uploading.upload import check_upload

        check_upload(conversion, overwrite=overwrite, resume=resume)
    else:
        check_output(conversion, overwrite=overwrite)
