"""A training program that trains nothing: it counts steps, saves, and continues after a restart.

    python -P toy_program.py --steps N --pace SECONDS --every N --notes FILE --checkpoints DIR

Each step adds its number to a state. The state depends on all steps and their order, so the last
state shows if a step was lost or repeated. A checkpoint is a directory with a safetensors file of
the step and the state. It is flushed to disk under another name, and then renamed. The file
`--notes` is a log with one line for each event:

    began ATTEMPT from STEP    an attempt has started after the checkpoint of STEP
    step N                     step N was run
    saved N                    the checkpoint of step N is complete
    stopped                    the program has ended before its last step, because it was asked to
    done STATE                 the last step was run, with this state
    beside ATTEMPT             another attempt of the job was still running (an error)

`RunLog` reads this log, and lists the steps that were lost or repeated.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import shutil
import struct
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from zerotools import worker

MODULUS = 2**61 - 1
FACTOR = 6364136223846793005
HEADER = json.dumps({"toy": {"dtype": "I64", "shape": [2], "data_offsets": [0, 16]}}).encode()
FILE = "model.safetensors"
KEPT = 3
"""The number of checkpoints to keep.

More than one is kept, because the daemon may not know the newest checkpoint yet.
"""
EXIT_BESIDE = 70


def state_after(state: int, step: int) -> int:
    """Return the toy program's state after `step`."""
    return (state * FACTOR + step) % MODULUS


def final_state(steps: int) -> int:
    """Return the toy program's state after all steps if no step was lost or repeated."""
    state = 0
    for step in range(1, steps + 1):
        state = state_after(state, step)
    return state


class ToyProgram:
    """One attempt of a toy job."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.steps: int = options.steps
        self.pace: float = options.pace
        self.every: int = options.every
        self.notes: Path = options.notes
        self.checkpoints: Path = options.checkpoints
        self.attempt = Path(os.environ.get("ZEROTOOLS_RUN_DIR", "attempt-0")).name.split("-")[-1]

    def append_line(self, line: str) -> None:
        """Append a line to the log with one write call.

        Even if this process is killed, the line is either complete or missing.
        """
        fd = os.open(self.notes, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            os.write(fd, f"{line}\n".encode("ascii"))
        finally:
            os.close(fd)

    def run(self) -> int:
        """Run all remaining steps, and return the exit status."""
        lock = os.open(f"{self.notes}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.append_line(f"beside {self.attempt}")
            return EXIT_BESIDE
        begin, state = self.load(worker.resume_from())
        self.append_line(f"began {self.attempt} from {begin}")
        for step in range(begin + 1, self.steps + 1):
            time.sleep(self.pace)
            state = self.advance(state, step)
            self.append_line(f"step {step}")
            worker.report(step, steps=self.steps, loss=1.0 / step)
            asked = worker.should_stop()
            if asked or step % self.every == 0 or step == self.steps:
                self.save(step, state)
            if asked and step < self.steps:
                self.append_line("stopped")
                return 0
        self.append_line(f"done {state}")
        return 0

    def advance(self, state: int, step: int) -> int:
        """Run one step, and return the state after this step."""
        return state_after(state, step)

    def load(self, path: str | None) -> tuple[int, int]:
        """Return the step and the state from a checkpoint; (0, 0) if no checkpoint exists."""
        if path is None:
            return 0, 0
        step, state = struct.unpack("<qq", (Path(path) / FILE).read_bytes()[-16:])
        return step, state

    def save(self, step: int, state: int) -> None:
        """Save a checkpoint. Its directory gets its final name only when it is complete."""
        path = self.checkpoints / f"step-{step:08}"
        staging = self.checkpoints / f".{path.name}"
        staging.mkdir(parents=True, exist_ok=True)
        with (staging / FILE).open("wb") as file:
            file.write(struct.pack("<Q", len(HEADER)) + HEADER + struct.pack("<qq", step, state))
            file.flush()
            os.fsync(file.fileno())
        if not path.exists():  # a killed attempt may have made it
            staging.rename(path)
        for directory in (path, self.checkpoints):
            _sync(directory)
        self.append_line(f"saved {step}")
        worker.checkpoint_written(path, step)
        for old in sorted(self.checkpoints.glob("step-*"))[:-KEPT]:
            _remove(old)


def _remove(checkpoint: Path) -> None:
    """Remove a checkpoint.

    It is renamed first, so that no reader finds an incomplete checkpoint.
    """
    gone = checkpoint.with_name(f".old-{checkpoint.name}")
    shutil.rmtree(gone, ignore_errors=True)  # left by an attempt that was killed here
    checkpoint.rename(gone)
    shutil.rmtree(gone, ignore_errors=True)


def _sync(directory: Path) -> None:
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def read_notes(path: Path) -> list[str]:
    """Return the lines of the program's log; an empty list if the program has not written any."""
    try:
        return path.read_text("ascii", "replace").splitlines()
    except FileNotFoundError:
        return []


class RunLog:
    """The log of one job with `steps` steps, and the errors that the log shows."""

    def __init__(self, lines: Sequence[str], steps: int) -> None:
        self.overlapping: list[str] = []
        """Sentences about attempts that ran at the same time as another attempt."""
        self.repeated: list[str] = []
        """Sentences about steps that were run again, although a checkpoint contained them."""
        self.lost: list[str] = []
        """Sentences about missing steps: a saved step was lost, or a step was never run."""
        self.after_end: list[str] = []
        """Sentences about steps that were run after the last step was done."""
        self.saved = 0
        self._at = 0
        self._is_done = False
        self._steps = steps
        for line in lines:
            self._add(*line.split())

    def _add(self, word: str, *rest: str) -> None:
        match word:
            case "began":
                self._began(rest[0], int(rest[2]))
            case "step":
                self._step(int(rest[0]))
            case "saved":
                self.saved = max(self.saved, int(rest[0]))
            case "beside":
                self.overlapping.append(f"attempt {rest[0]} ran at the same time as another one")
            case "done":
                self._done(int(rest[0]))

    def _began(self, attempt: str, begin: int) -> None:
        if begin < self.saved:
            self.repeated.append(
                f"attempt {attempt} began from step {begin}, although step {self.saved} was saved"
            )
        if begin > self._at:
            self.lost.append(
                f"attempt {attempt} began from step {begin}, but the last step before it was "
                f"{self._at}"
            )
        # A checkpoint may have its name, and the program have been killed before it noted so.
        self.saved = max(self.saved, begin)
        self._at = begin

    def _step(self, step: int) -> None:
        if self._is_done:
            self.after_end.append(f"step {step} was run after the last step")
        if step != self._at + 1:
            self.lost.append(f"step {step} came after step {self._at}")
        self._at = step

    def _done(self, state: int) -> None:
        self._is_done = True
        if self._at != self._steps:
            self.lost.append(f"it finished after step {self._at} of {self._steps}")
        elif state != final_state(self._steps):
            self.lost.append(
                f"its last state is {state}, but after {self._steps} steps, each run once, it "
                f"must be {final_state(self._steps)}"
            )

    def unfinished(self) -> Iterator[str]:
        """Yield a sentence if, according to the log, the job did not run and save all its steps."""
        if not self._is_done:
            yield f"its program stopped after step {self._at} of {self._steps}"
        elif self.saved < self._steps:
            yield f"its last step {self._steps} was not saved; the last saved step is {self.saved}"


def main(arguments: list[str] | None = None, program: type[ToyProgram] = ToyProgram) -> int:
    """Run the toy program with the arguments of the command line."""
    parser = argparse.ArgumentParser(
        description="Counts steps, saves the count, and resumes from the last saved count."
    )
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--pace", type=float, required=True)
    parser.add_argument("--every", type=int, required=True)
    parser.add_argument("--notes", type=Path, required=True)
    parser.add_argument("--checkpoints", type=Path, required=True)
    return program(parser.parse_args(arguments)).run()


if __name__ == "__main__":
    sys.exit(main())
