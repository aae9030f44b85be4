"""Write an output to a disk or to an object store. Its path decides which."""

from __future__ import annotations

from collections.abc import Callable

from zerotools.io.files.open_source import RemotePath
from zerotools.ops.conversions.conversion import Conversion, check_output, perform_conversion
from zerotools.ops.execution.execute import WriteReport
from zerotools.ops.execution.tile_workers import MemoryBudget


def write_output(
    conversion: Conversion,
    *,
    budget: MemoryBudget,
    overwrite: bool,
    verify: bool = False,
    resume: bool = False,
    on_bytes: Callable[[int], None] = lambda _: None,
    check: Callable[[WriteReport], None] = lambda _: None,
) -> WriteReport:
    """Write the output with `perform_conversion`, or with `perform_upload` if the destination is in
    an object store."""
    carry_out = perform_conversion
    if isinstance(conversion.destination, RemotePath):
        from zerotools.ops.store_output.convert_into_store import perform_upload

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
    """Check the destination with `check_output`, or with `check_upload` if it is in an object
    store."""
    if isinstance(conversion.destination, RemotePath):
        from zerotools.ops.store_output.convert_into_store import check_upload

        check_upload(conversion, overwrite=overwrite, resume=resume)
    else:
        check_output(conversion, overwrite=overwrite)
