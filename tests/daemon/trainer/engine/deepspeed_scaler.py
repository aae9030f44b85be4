"""DeepSpeed's loss scaler in a process of its own: a case per line in, what it did per line out.

A case is `{"options": {...}, "overflows": [...]}`, the answer the scaler's numbers after each step,
and last `"raised"` if it gave up. `deepspeed_scaler.py --golden` writes 60 cases, each with its
answer after 30 steps, to `deepspeed_scaler.jsonl`.
"""

import json
import logging
import random
import sys
from pathlib import Path
from typing import Any

from deepspeed.comm import comm
from deepspeed.runtime.fp16.loss_scaler import DynamicLossScaler
from deepspeed.utils import logger

NUMBERS = ("cur_scale", "cur_iter", "last_overflow_iter", "cur_hysteresis")


class Alone:
    """All that the scaler asks of a backend: who it is. A real one compiles C++ first."""

    def is_initialized(self) -> bool:
        """It is."""
        return True

    def get_rank(self, group: object = None) -> int:
        """Rank 0 of 1."""
        return 0


def trace(options: dict[str, Any], overflows: list[bool]) -> list[Any]:
    """The numbers after each step."""
    scaler, seen = DynamicLossScaler(**options), []
    for overflow in overflows:
        try:
            scaler.update_scale(overflow)
        except Exception as error:
            if "already at minimum" not in str(error):
                raise
            return [*seen, "raised"]
        seen.append([getattr(scaler, name) for name in NUMBERS])
    return seen


def write() -> None:
    """Write the cases that need no DeepSpeed."""
    draw, lines = random.Random(0), []
    for number in range(60):
        options = {
            "init_scale": 2.0 ** draw.randint(2, 20),
            "scale_window": draw.randint(1, 5),
            "min_scale": draw.choice([0.25, 1.0, 3.0]),
            "delayed_shift": draw.randint(1, 4),
            "consecutive_hysteresis": draw.random() < 0.5,
        }
        overflows = [draw.random() < 1 / (2 + number % 4) for _ in range(30)]
        case = {"options": options, "overflows": overflows}
        lines.append(json.dumps({**case, "answer": trace(options, overflows)}))
    Path(__file__).with_suffix(".jsonl").write_text("\n".join(lines) + "\n")


def main() -> None:
    """Answer until standard input ends."""
    comm.cdb = Alone()
    logger.setLevel(logging.ERROR)
    if sys.argv[1:] == ["--golden"]:
        write()
        return
    print("ready", flush=True)
    for line in sys.stdin:
        print(json.dumps(trace(**json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
