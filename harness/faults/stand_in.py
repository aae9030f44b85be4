"""A rank that trains nothing, but saves real checkpoints: `stand_in.py --run-dir DIR`.

A step only writes a line to the file `$LINES`. A checkpoint is a copy of the tensors in `$TENSORS`
(a DCP directory), committed by the trainer's `Committer`. The rank resumes from the newest
undamaged checkpoint, as the trainer does. Environment variables:

    EVERY=N        save a checkpoint every N steps (default 1)
    PACE=SECONDS   the duration of a step (default 0)
    CRASH=N        in the first attempt, send SIGKILL to itself after step N
    WAIT=N         after step N, wait for a request to stop, or for the file $OTHER if it is set
    ALONE=N        like WAIT, but only if this is the only rank

The ranks of an attempt do not wait for each other. Only the first rank reports and saves. The other
ranks take as long.
"""

from __future__ import annotations

import argparse
import json
import os
import runpy
import shutil
import signal
import sys
import time
from pathlib import Path
from typing import Any

ENTRY = Path(__file__).resolve().parents[2] / "daemon" / "zerotoolsd" / "trainer" / "entry.py"
runpy.run_path(str(ENTRY))["make_importable"]()

from zerotools.core.errors import BadFile  # noqa: E402
from zerotools.runs import find_job_checkpoints  # noqa: E402
from zerotools.runs.training_record import (  # noqa: E402
    JobRecord,
    ModelRecord,
    OptimizerGroup,
    OptimizerRecord,
)
from zerotoolsd.trainer.checkpoints.choose_checkpoints_to_keep import KeepPolicy  # noqa: E402
from zerotoolsd.trainer.checkpoints.commit_and_delete_checkpoints import (  # noqa: E402
    Committer,
    check_structure,
    clear_leftovers,
)
from zerotoolsd.trainer.rank.notify_supervisor import Notifier  # noqa: E402

EXIT_STOPPED, EXIT_BAD_CHECKPOINT, EXIT_NOT_SAVED = 75, 65, 1


def record_of(step: int, steps: int) -> JobRecord:
    """Return the record of a checkpoint at step `step`, for a model with one tensor."""
    return JobRecord(
        step=step,
        steps_total=steps,
        world_size=1,
        stage=1,
        precision="fp32",
        seed=7,
        consumed_sequences=step,
        batch_size=1,
        sequence_length=1,
        optimizer=OptimizerRecord("sgd", (OptimizerGroup(0.1, 0.0, momentum=0.0),)),
        model=ModelRecord(4, 0),
    )


class StandIn:
    """One rank of one attempt, which trains nothing."""

    def __init__(self, run_dir: Path) -> None:
        self.run_dir = run_dir
        self.is_first = os.environ.get("RANK", "0") == "0"
        spec: dict[str, Any] = json.loads((run_dir / "spec.json").read_text("utf-8"))
        self.attempt = json.loads((run_dir / "attempt.json").read_text("utf-8"))["attempt"]
        self.steps = int(spec["train"]["steps"])
        self.output = Path(spec["output_dir"])
        self.notifier = Notifier(os.environ.get("ZEROTOOLS_NOTIFY"), 0)
        self.committer = Committer(self.output, KeepPolicy(last=2), lambda _: None)

    def note(self, line: str) -> None:
        """Append a line to the file `$LINES`. Only the first rank does this."""
        if not self.is_first:
            return
        with Path(os.environ["LINES"]).open("a", encoding="utf-8") as file:
            file.write(f"{line}\n")

    def run(self) -> int:
        """Run all steps, and return the exit status."""
        if self.is_first:
            clear_leftovers(self.output)
        start = find_job_checkpoints.newest_valid(
            self.output, trusting=True, structure=check_structure
        )
        if start.path is None and start.skipped:
            self.notifier.event("error", kind="bad_checkpoint", message=start.skipped[0].why)
            return EXIT_BAD_CHECKPOINT
        begin = start.record.step if start.record is not None else 0
        self.note(f"began {self.attempt} from {begin}")
        self.notifier.enter("train")
        for step in range(begin + 1, self.steps + 1):
            time.sleep(float(os.environ.get("PACE", "0")))
            self.note(f"step {step}")
            self.notifier.step = step
            left = 60.0 * (self.steps - step)  # so that an elastic job has reason to grow
            self.notifier.event("step", steps=self.steps, loss=1.0 / step, seconds_left=left)
            asked = (self.run_dir / "stop").exists()
            due = step % int(os.environ.get("EVERY", "1")) == 0
            if (
                (asked or due or step == self.steps)
                and not self.save(step)
                and (asked or step == self.steps)
            ):
                return EXIT_NOT_SAVED  # the last one, without which the rest is lost
            if asked:
                return EXIT_STOPPED
            self.misbehave(step)
        self.notifier.enter("done")
        self.note("done")
        return 0

    def save(self, step: int) -> bool:
        """Save a checkpoint as the trainer does, and return whether it was saved."""
        if not self.is_first:
            return True
        try:
            staging = self.committer.make_staging(step)
            shutil.copytree(os.environ["TENSORS"], staging / "dcp")
            found = self.committer.commit(staging, record_of(step, self.steps))
        except (OSError, BadFile) as error:
            self.note(f"not saved {step}: {error}")
            return False
        self.note(f"saved {step}" + ("" if found.doubt is None else f" in doubt: {found.doubt}"))
        self.notifier.event("checkpoint", path=str(found.path), bytes=found.size_bytes, seconds=0.0)
        return True

    def misbehave(self, step: int) -> None:
        """Crash or wait after step `step`, if the environment variables require it."""
        if self.attempt == 1 and step == int(os.environ.get("CRASH", "0")):
            os.kill(os.getpid(), signal.SIGKILL)
        alone = os.environ.get("ALONE", "0") if os.environ.get("WORLD_SIZE") == "1" else "0"
        if step in (int(os.environ.get("WAIT", "0")), int(alone)):
            other = os.environ.get("OTHER")
            while not (self.run_dir / "stop").exists():
                if other and Path(other).exists():
                    return
                time.sleep(0.005)


def main() -> int:
    """Run the rank that the command line describes."""
    parser = argparse.ArgumentParser(description="A rank that trains nothing.")
    parser.add_argument("--run-dir", type=Path, required=True)
    return StandIn(parser.parse_args().run_dir).run()


if __name__ == "__main__":
    status = main()
    sys.stdout.flush()
    os._exit(status)  # like the trainer: its work is done a moment later
