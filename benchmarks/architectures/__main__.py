"""Every architecture through the trainer and back to transformers.

    python -m benchmarks.architectures [NAME...]

Prints a table as Markdown: `save_pretrained`, three steps of engine torch on two CPU ranks at
stage 3, export, `from_pretrained`. The exit status is 1 if a row does not hold.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
import tempfile
import time
import warnings
from collections.abc import Sequence
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch: the ranks have one thread, too
os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")

from transformers.utils import logging as transformers_logging

from benchmarks.architectures.configs import ARCHITECTURES
from benchmarks.architectures.trained import Row, examine
from harness.forked import close_servers

COLUMNS = ("architecture", "parameters", "loss", "logits", "names", "decay", "what fails")


def main() -> int:
    """Print the table; the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="architectures; default: all")
    parser.add_argument("--keep", type=Path, help="a directory for what the ranks write")
    asked = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    transformers_logging.disable_progress_bar()
    started, rows = time.monotonic(), []
    print(_line(COLUMNS), _line(["---"] * len(COLUMNS)), sep="\n", flush=True)
    with tempfile.TemporaryDirectory() as temporary:
        for name in asked.names or ARCHITECTURES:
            place = (asked.keep or Path(temporary)) / name
            place.mkdir(parents=True)
            rows.append(examine(name, place))
            print(_row(rows[-1]), flush=True)
    close_servers()
    held = sum(row.holds for row in rows)
    print(f"\n{held} of {len(rows)} hold, in {time.monotonic() - started:.0f} s", flush=True)
    return 0 if held == len(rows) else 1


def _row(row: Row) -> str:
    return _line(
        (
            row.name,
            str(row.parameters),
            "" if row.loss is None else f"{row.loss:.0e}",
            "" if row.logits is None else "equal" if row.logits == 0 else f"{row.logits:.2g} off",
            _difference(row.names),
            _difference(row.decay),
            row.failure.replace("|", "\\|"),
        )
    )


def _difference(names: Sequence[str] | None) -> str:
    if names is None:
        return ""
    return f"{len(names)} differ, such as {names[0]}" if names else "equal"


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    sys.exit(main())
