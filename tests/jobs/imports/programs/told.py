"""Settings of runs as the tests of their readers want them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from zerotools.jobs.imports.combine_configs import Imported, import_configs
from zerotools.jobs.imports.programs.launcher_options import with_launch_options
from zerotools.jobs.imports.programs.read_launch_line import read_launch
from zerotools.jobs.imports.programs.run_settings import RunSettings
from zerotools.jobs.imports.reading.look_up_job_keys import look_up
from zerotools.jobs.text.config_document import Document


def of(run: RunSettings, file: Document | None = None) -> Imported:
    """The job that `run` amounts to, without files that it names."""
    accelerate = None if run.accelerate is None else with_launch_options(file, run.accelerate)
    return import_configs(None, run=run, accelerate=accelerate)


def of_line(text: str, *, lines: bool = False) -> Imported:
    """The job of a launch line."""
    return of(read_launch(text, "run.sh", Path(), lines=lines))


def key(imported: Imported, name: str) -> Any:
    """A key of the job; fails where it is refused."""
    assert imported.problem is None, str(imported.problem)
    return look_up(imported.tree, name)


def rows(imported: Imported, outcome: str) -> dict[str, str]:
    """Titles of the rows of an outcome, and why."""
    return {row.key: row.why for row in imported.findings.rows if row.outcome.value == outcome}
