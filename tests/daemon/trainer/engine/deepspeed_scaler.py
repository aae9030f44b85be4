"""DeepSpeed's loss scaler in a process of its own: a case per line in, what it did per line out.

A case is `{"options": {...}, "overflows": [...]}`, the answer the scaler's numbers after each step,
and last `"raised"` if it gave up.
"""

import json
import logging
import sys
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


def main() -> None:
    """Answer until standard input ends."""
    comm.cdb = Alone()
    logger.setLevel(logging.ERROR)
    print("ready", flush=True)
    for line in sys.stdin:
        print(json.dumps(trace(**json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
