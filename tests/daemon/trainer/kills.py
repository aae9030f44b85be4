"""SIGKILL ranks of a run that saves beside training, again and again, and judge what it comes to.

    python -m tests.daemon.trainer.kills --rounds 50 [--seed 1] [--ranks 2] [--stage 3]

Every attempt must go on from a checkpoint at least as new as the last one that was told of, take
the very losses of a run that nobody touched, and end at the very same weights and moments.
"""

from __future__ import annotations

import argparse
import itertools
import random
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.launching import job, run, start
from zerotools.runs import find_job_checkpoints


@dataclass(frozen=True)
class Killed:
    """One attempt: the step that it began after, the newest that it told was saved, its last."""

    began: int
    saved: int
    reached: int


def survive(directory: Path, tree: Mapping[str, Any], kills: int, seed: int) -> list[Killed]:
    """Run `tree` with `kills` attempts of which a rank is killed, and one that is left alone.

    Raises:
        AssertionError: something was lost, or differs.
    """
    from tests.daemon.trainer.tensors import digest

    chance = random.Random(seed)
    whole = run(directory / "whole", {**tree, "checkpoint": {}})
    losses, steps = whole.losses(), tree["train"]["steps"]
    wanted = digest(whole.run_dir / "out" / find_job_checkpoints.directory_name(steps))
    attempts: list[Killed] = []
    while not attempts or attempts[-1].reached < steps:
        saved = max((one.saved for one in attempts), default=0)
        mercy = len(attempts) >= kills
        attempts.append(_attempt(directory / "run", tree, losses, saved, None if mercy else chance))
    final = directory / "run" / "out" / find_job_checkpoints.directory_name(steps)
    find_job_checkpoints.verify_checkpoint_files(final)
    assert digest(final) == wanted
    return attempts


def _attempt(
    run_dir: Path,
    tree: Mapping[str, Any],
    losses: Mapping[int, float],
    saved: int,
    chance: random.Random | None,
) -> Killed:
    attempt = start(run_dir, tree)
    if chance is not None:
        # Steps, saves and phases are told as they come: any of them may be the last.
        attempt.mailbox.wait_for_count("step", chance.randint(1, 9), more=chance.randint(0, 5))
        attempt.processes[chance.randrange(tree["ranks"])].kill()
    statuses = attempt.finish()
    assert chance is not None or not any(statuses), attempt.log()
    resumed = attempt.events("resumed")
    began = resumed[0]["step"] if resumed else 0
    assert began >= saved, f"went on after step {began}, and step {saved} had been saved"
    assert attempt.events("skipped_checkpoint") == []
    for step, loss in attempt.losses().items():
        assert loss == losses[step], f"the loss of step {step} is {loss}, not {losses[step]}"
    told = [event["step"] for event in attempt.events("checkpoint")]
    reached = max(attempt.losses(), default=began)
    return Killed(began, max(told, default=saved), began if any(statuses) else reached)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=50, help="attempts of which a rank is killed")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--stage", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        text = Path(place) / "text"
        text.write_text("one sheep, two sheep, and a black one\n" * 400)
        tree = killable(text, options.ranks, options.stage, steps=4 * options.rounds)
        attempts = survive(Path(place), tree, options.rounds, options.seed)
    lost = [before.saved - after.began for before, after in itertools.pairwise(attempts)]
    print(
        f"{len(attempts) - 1} kills, every resume exact; went on after a newer step than the last "
        f"told of: {sum(steps < 0 for steps in lost)} times, after an older one: "
        f"{sum(steps > 0 for steps in lost)} times"
    )


def killable(text: Path, ranks: int, stage: int, steps: int) -> dict[str, Any]:
    """A job that saves after every second step, beside training."""
    return job(
        text,
        ranks=ranks,
        zero={"stage": stage},
        train={"steps": steps},
        checkpoint={"every": 2, "keep_last": 2, "asynchronous": True},
    )


if __name__ == "__main__":
    main()
