"""A rank that prepares several jobs that cannot run: run by `launching.start`.

Rank 0 prints one JSON object: by name, what each rank was told, or null where the job could be made
ready.
"""

import runpy
import time
from pathlib import Path

each_job = runpy.run_path(str(Path(__file__).resolve().parents[3] / "harness" / "rank_jobs.py"))[
    "each_job"
]

from zerotools.core.errors import ZerotoolsError  # noqa: E402
from zerotoolsd.trainer.prepare_and_train import prepare_training  # noqa: E402
from zerotoolsd.trainer.rank.notify_supervisor import Notifier  # noqa: E402
from zerotoolsd.trainer.rank.process_group import WorldGroup  # noqa: E402
from zerotoolsd.trainer.rank.rank_settings import read_spec  # noqa: E402
from zerotoolsd.trainer.reporting.reporter import (  # noqa: E402
    Phases,
    Reporter,
)


def told(run_dir: Path, group: WorldGroup) -> str | None:
    """Why the job in `run_dir` cannot be made ready."""
    try:
        spec = read_spec(run_dir)
        reporter = Reporter(group.rank, Notifier(None, group.rank.index), steps=spec.train.steps)
        prepare_training(spec, run_dir, group, reporter, Phases(time.monotonic()))
    except ZerotoolsError as error:
        return f"{type(error).__name__}: {error}"
    return None


if __name__ == "__main__":
    each_job(lambda run_dir, group: group.gathered(told(run_dir, group)))
