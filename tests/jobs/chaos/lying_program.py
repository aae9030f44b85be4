"""A toy program whose third step does nothing, though it notes it."""

from __future__ import annotations

import sys

from zerotools.jobs.chaos.toy_program import ToyProgram, main


class LyingProgram(ToyProgram):
    """Loses a step."""

    def advance(self, state: int, step: int) -> int:
        return state if step == 3 else super().advance(state, step)


if __name__ == "__main__":
    sys.exit(main(program=LyingProgram))
