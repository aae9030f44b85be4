"""Conversions as jobs, with real processes."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.daemon.daemons import Daemon
from tests.golden_files import DEEPSPEED, digests
from zerotools.jobs.jobfile.make_conversion_job import conversion_tree, option_sets
from zerotools.jobs.jobfile.parse import job_from_tree
from zerotools.ops.conversions import consolidate
from zerotools.ops.conversions.conversion import (
    Conversion,
    perform_conversion,
    perform_part,
    prove_part,
)
from zerotools.ops.execution.output_part import OutputPart
from zerotools.ops.execution.tile_workers import MemoryBudget

SOURCE = DEEPSPEED / "z3-bf16-w2" / "checkpoint"


def prepared(out: Path) -> Conversion:
    found = consolidate.prepare_export(SOURCE, out, consolidate.Options())
    assert isinstance(found, Conversion)
    return found


def test_the_parts_of_a_job_go_on_from_what_was_done(daemon: Daemon, tmp_path: Path) -> None:
    one = tmp_path / "one"
    perform_conversion(prepared(one), budget=MemoryBudget(2**20), overwrite=False)
    begun = prepared(tmp_path / "out")
    _, first = prove_part(begun, OutputPart(1, 2))
    report = perform_part(begun, first, budget=MemoryBudget(2**20), overwrite=False)
    assert report.missing == (2,)  # as an attempt leaves it that was killed

    daemon.start()
    words = ["consolidate", str(SOURCE), "out"]
    tree = conversion_tree(
        words, option_sets(words, 2)[0], 2, python=sys.executable, directory=tmp_path
    )
    job = job_from_tree(tree, source="job", base_dir=tmp_path)
    assert daemon.client.submit(job)["id"] == 1
    assert daemon.wait_for_end(1)["state"] == "succeeded"
    assert digests(tmp_path / "out" / "model.safetensors") == digests(one / "model.safetensors")
    again = daemon.client.submit(job)  # a job whose end was not seen may be started once more
    assert daemon.wait_for_end(again["id"])["state"] == "succeeded"
