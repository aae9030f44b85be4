"""Make a model directory of a finished run's newest checkpoint: `exporting.py OUTPUT_DIR DTYPE`.

A process of its own, without torch and without the GPU, in bounded memory. The export appears whole
in `OUTPUT_DIR/export`, and replaces one that an earlier run left there.
"""

from __future__ import annotations

import runpy
import sys
from collections.abc import Sequence
from pathlib import Path


def export(output_dir: Path, dtype: str) -> Path:
    """Export the newest whole checkpoint of `output_dir` in `dtype`, a
    `checkpoint.export_on_finish`; where it is.

    Raises:
        ZerotoolsError: there is no checkpoint, it is damaged, weights do not fit in fp16, or there
            is no room.
    """
    from zerotools.core.errors import BadFile
    from zerotools.jobs.tables.checkpoint import ADAPTER, EXPORT
    from zerotools.ops.conversions.consolidate import Options, prepare, refuse_overflow
    from zerotools.ops.conversions.conversion import perform
    from zerotools.ops.execution.execute import WriteReport
    from zerotools.ops.execution.workers import MemoryBudget
    from zerotools.runs import checkpoint_dirs

    newest = next(iter(checkpoint_dirs.listing(output_dir)), None)
    if newest is None:
        raise BadFile(f"{output_dir} holds no checkpoint to export")

    def check(report: WriteReport) -> None:
        refuse_overflow(report, 'set checkpoint.export_on_finish = "bf16" or "fp32"')

    options = Options(adapter_only=True) if dtype == ADAPTER else Options(dtype=dtype)
    conversion = prepare(newest, output_dir / EXPORT, options)
    perform(conversion, budget=MemoryBudget(1 << 30), overwrite=True, check=check)
    return conversion.destination


def main(arguments: Sequence[str]) -> int:
    """The command line; the exit status."""
    from zerotools.core.errors import ZerotoolsError

    output_dir, dtype = arguments
    try:
        print(f"exported to {export(Path(output_dir), dtype)}")
    except (ZerotoolsError, OSError) as error:
        print(" ".join(str(error).split()), file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    # The daemon's interpreter may have another zerotools, or none that can be found from here.
    runpy.run_path(str(Path(__file__).parent / "trainer" / "entry.py"))["make_importable"]()
    raise SystemExit(main(sys.argv[1:]))
