"""Makes a model directory from a checkpoint.

    export.py OUTPUT_DIR DTYPE                     the newest checkpoint of a finished run
    export.py --evaluated CHECKPOINT OUTPUT_DIR    a checkpoint that another job evaluates

The program runs as a separate process, without torch and without a GPU, and uses a bounded amount
of memory. The export appears complete in `OUTPUT_DIR/export` or `OUTPUT_DIR/model`, and replaces an
export of an earlier run.
"""

from __future__ import annotations

import json
import runpy
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from zerotools.ops.conversions.consolidate import Options


def export_newest(output_dir: Path, dtype: str) -> Path:
    """Export the newest complete checkpoint of `output_dir` in `dtype`; return the path.

    `dtype` is a value of `checkpoint.export_on_finish`.

    Raises:
        ZerotoolsError: no checkpoint exists, it is damaged, weights do not fit in fp16, or the disk
            is full.
    """
    from zerotools.core.errors import BadFile
    from zerotools.jobs.jobfile_tables.checkpoint import ADAPTER, EXPORT
    from zerotools.ops.conversions.consolidate import Options
    from zerotools.runs import find_job_checkpoints

    newest = next(iter(find_job_checkpoints.list_checkpoints(output_dir)), None)
    if newest is None:
        raise BadFile(f"{output_dir} holds no checkpoint to export")
    options = Options(adapter_only=True) if dtype == ADAPTER else Options(dtype=dtype)
    instead = 'set checkpoint.export_on_finish = "bf16" or "fp32"'
    return _write(newest, output_dir / EXPORT, options, instead)


def export_evaluated(checkpoint: Path, output_dir: Path) -> Path:
    """Export the model of `checkpoint`. If `checkpoint` is a directory of checkpoints, export the
    newest complete one. Return the model's path.

    Weights are in 16 bits, with adapters merged. The file `EVALUATED` of `output_dir` names the
    checkpoint.

    Raises:
        ZerotoolsError: as in `export_newest`, or `checkpoint` contains no complete checkpoint.
    """
    from zerotools.core.errors import BadFile
    from zerotools.jobs.jobfile_tables.script import EVALUATED, MODEL
    from zerotools.ops.conversions.consolidate import Options
    from zerotools.runs import find_job_checkpoints

    path = find_job_checkpoints.resolve_hint(checkpoint)
    if find_job_checkpoints.step_of(path.name) is not None:
        step = find_job_checkpoints.verify_checkpoint_files(path).step
    else:
        found = find_job_checkpoints.newest_valid(
            path, thinned=True
        )  # the weights are all that it needs
        if found.path is None or found.record is None:
            newest = f"; the newest cannot be used: {found.skipped[0].why}" if found.skipped else ""
            raise BadFile(f"{checkpoint} has no complete checkpoint to evaluate{newest}")
        path, step = found.path, found.record.step
    output_dir.mkdir(parents=True, exist_ok=True)
    told = {"checkpoint": str(path), "step": step}
    (output_dir / EVALUATED).write_text(json.dumps(told) + "\n", "utf-8")
    instead = "train in bf16 or fp32, or evaluate an export in fp32"
    return _write(path, output_dir / MODEL, Options(), instead)


def _write(checkpoint: Path, destination: Path, options: Options, instead: str) -> Path:
    """Write the model directory. If weights do not fit in fp16, the error names the alternative
    `instead`."""
    from zerotools.ops.conversions.consolidate import prepare_export
    from zerotools.ops.conversions.conversion import perform_conversion, refuse_overflow
    from zerotools.ops.execution.execute import WriteReport
    from zerotools.ops.execution.tile_workers import MemoryBudget

    def check(report: WriteReport) -> None:
        refuse_overflow(report, instead)

    conversion = prepare_export(checkpoint, destination, options)
    perform_conversion(conversion, budget=MemoryBudget(1 << 30), overwrite=True, check=check)
    return conversion.destination


def main(arguments: Sequence[str]) -> int:
    """Run the command line; return the exit status."""
    from zerotools.core.errors import ZerotoolsError

    try:
        if arguments[0] == "--evaluated":
            _, checkpoint, output_dir = arguments
            made = export_evaluated(Path(checkpoint), Path(output_dir))
        else:
            output_dir, dtype = arguments
            made = export_newest(Path(output_dir), dtype)
        print(f"exported to {made}")
    except (ZerotoolsError, OSError) as error:
        print(" ".join(str(error).split()), file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    # The daemon's interpreter may have another zerotools, or none that can be found from here.
    runpy.run_path(str(Path(__file__).parents[1] / "trainer" / "entry.py"))["make_importable"]()
    raise SystemExit(main(sys.argv[1:]))
