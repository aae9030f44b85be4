"""`python -m tests.daemon.trainer.interruptions`: the tables, as Markdown; status 1 if a row does
not hold."""

from __future__ import annotations

import argparse
import platform
import random
import sys
import tempfile
import time
from collections.abc import Callable, Collection
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks.judging_training.setting import make
from harness.forked import close_servers
from tests.daemon.trainer.interruptions import by_daemon, by_ranks
from tests.daemon.trainer.interruptions.compared import Interrupted
from tests.daemon.trainer.interruptions.moving import Moved, move
from tests.daemon.trainer.interruptions.ways import BY_DAEMON, MOVED, tree_of, ways

STEPS, MOVED_STEPS = 70, 30
HEADING = """# Runs that are interrupted or moved

`./scripts/judge-training`: jobs against the same jobs that nobody touched. Equal: loss, gradient
norm, learning rate, loss scale and evaluation of every step of every attempt, and at the end all
weights and optimizer state, to the last bit.
"""
THROUGH_DAEMON = f"""## Cancel, SIGTERM and SIGKILL through the daemon

{STEPS} steps, a checkpoint every 7. Each job is submitted to a real zerotoolsd and ended once in
each way, after random steps: cancelled and resumed, SIGTERM to its supervisor, SIGKILL to one of
its ranks.

| job | ends | numbers of steps, weights, optimizer |
|---|---|---|"""
WITHOUT_DAEMON = """
## The same of ranks

Ranks as the supervisor starts them: the file by which it asks for a stop, SIGTERM and SIGKILL to
one rank.

| job | ends | numbers of steps, weights, optimizer |
|---|---|---|"""
MOVES = f"""
## Other stages and other numbers of ranks

{MOVED_STEPS} steps, stopped after random ones. Differences of any step's loss from that of the run
that was not moved; the tolerance is 1e-05 in fp32 and 5e-04 in 16 bits.

| job | where it ran, to which step | largest difference, relative |
|---|---|---|"""


Find = Callable[[dict[str, Any], Path, random.Random], Interrupted | Moved]


class Tables:
    """The rows; `held` has whether each holds."""

    def __init__(self, place: Path, seed: int) -> None:
        texts = [_text(place / "sheep", "one sheep, two sheep, and a black one\n")]
        texts.append(_text(place / "goats", "a goat, 2 goats, 3 goats; and none is white\n"))
        spill = place / "spill"
        spill.mkdir()
        setting = make(place / "setting", "llama")
        self.ways = ways([str(text) for text in texts], setting, spill)
        self.held: list[bool] = []
        self._place, self._seed, self._text = place, seed, texts[0]

    def through_daemon(self, names: Collection[str]) -> None:
        """The first table."""
        daemon = by_daemon.make_daemon(self._place / "state").start()
        try:
            self._rows(names, THROUGH_DAEMON, STEPS, partial(by_daemon.interrupt, daemon))
        finally:
            daemon.stop()

    def without_daemon(self, names: Collection[str]) -> None:
        """The second."""
        self._rows(names, WITHOUT_DAEMON, STEPS, by_ranks.interrupt)

    def moved(self, names: Collection[str]) -> None:
        """The third."""
        self._rows(names, MOVES, MOVED_STEPS, move)

    def _rows(self, names: Collection[str], heading: str, steps: int, find: Find) -> None:
        print(heading, flush=True)
        for name in (each for each in self.ways if each in names):
            tree = tree_of(self.ways[name], self._text, steps)
            place = self._place / f"row-{len(self.held)}"
            try:
                holds, cells = _said(find(tree, place, random.Random(f"{self._seed} {name}")))
            except Exception as error:  # whatever it is, the other rows follow
                why = " ".join(f"{type(error).__name__}: {error}".split())[-400:].replace("|", " ")
                holds, cells = False, f"{why} | it did not come to that"
            self.held.append(holds)
            print(f"| {name} | {cells} |", flush=True)


def _said(found: Interrupted | Moved) -> tuple[bool, str]:
    if isinstance(found, Moved):
        return found.far <= found.most, f"{', '.join(found.ways)} | {found.far:.1e}"
    wrong = f"{len(found.wrong)} differ: {found.wrong[0]}" if found.wrong else "equal"
    return not found.wrong, f"{'; '.join(found.ends)} | {wrong}"


def _text(path: Path, line: str) -> Path:
    path.write_text("".join(f"{number} {line}" for number in range(400)))
    return path


def main() -> int:
    """Print the tables; the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="JOB", help="rows of the tables; default: all")
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    versions = ", ".join(f"{name} {version(name)}" for name in ("torch", "transformers", "peft"))
    print(HEADING)
    print(f"Python {platform.python_version()}, {versions}; CPUs, seed {asked.seed}.\n")
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as directory:
        tables = Tables(Path(directory), asked.seed)
        chosen = [name for name in tables.ways if name in asked.names or not asked.names]
        tables.through_daemon([name for name in chosen if name in BY_DAEMON])
        tables.without_daemon([name for name in chosen if name not in BY_DAEMON])
        tables.moved([name for name in chosen if name in MOVED])
    close_servers()
    held, seconds = tables.held, time.monotonic() - started
    print(f"\n{sum(held)} of {len(held)} rows hold, in {seconds:.0f} s.")
    return 0 if all(held) else 1


if __name__ == "__main__":
    sys.exit(main())
