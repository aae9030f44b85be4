"""Lets the ranks of one training agree on the step of a stop, and on the end of a save.

Ranks get the request to stop at different times. If one rank stopped a step before the other ranks,
they would wait for it forever. So all ranks decide together, by an all-reduce. To keep this cheap,
the all-reduce happens about once a second: from the time of a step, all ranks compute the same next
step for it. In this example the first step takes 5 s, and each later step 0.1 s:

    after step      1     2     12
    rank 0 asked    no    no    no
    rank 1 asked    no    no    yes
    all ranks       no    no    yes: both stop

This module does not import `torch`. It uses the `torch` that the program has imported.
"""

from __future__ import annotations

import sys
import time
from typing import Any

from zerotools import worker

ASK_SECONDS = 1.0
MOST_STEPS_BETWEEN = 100
JOIN_SECONDS = 60.0
SAVE_SECONDS = 60.0
_POLL_SECONDS = 0.02
_counts: dict[str, int] = {}


def _ordinal(name: str) -> int:
    """Return how often this process has called the function with `name`. The number makes a key of
    the store unique."""
    _counts[name] = _counts.get(name, 0) + 1
    return _counts[name]


class TrainingRanks:
    """The ranks of one training. All ranks must make the same calls at the same steps.

    If several ranks have no common group of `torch.distributed`, they cannot agree: the training
    does not save at a stop, and its checkpoints are not reported.
    """

    def __init__(self, size: int, device: Any = "cpu") -> None:
        self.size = size
        self._device = device
        self._store = _store_of(size)
        self.is_complete = size == 1 or (self._store is not None and self._all_have_joined())
        self._asked = (0, time.monotonic())
        self._ask_at = 0

    def _all_have_joined(self) -> bool:
        """Wait until all ranks have a callback, at most `JOIN_SECONDS`. Return False if a rank has
        no callback, because an all-reduce would wait for this rank forever."""
        key = f"zerotools/joined/{_ordinal('joined')}"
        self._store.add(key, 1)
        found = "all" if self._has_reached(key, JOIN_SECONDS) else "some"
        verdict = self._store.compare_set(f"{key}/verdict", "", found)  # the first rank decides
        if verdict in (b"all", "all"):
            return True
        print(
            f"zerotools: fewer than {self.size} ranks have a ZerotoolsCallback, so this training "
            "does not save when its job stops, and does not report checkpoints; add the callback "
            "on every rank",
            file=sys.stderr,
        )
        return False

    def _has_reached(self, key: str, seconds: float) -> bool:
        """Wait at most `seconds`, and return whether every rank has increased the counter `key` in
        the store."""
        deadline = time.monotonic() + seconds
        while self._store.add(key, 0) < self.size:
            if time.monotonic() >= deadline:
                return False
            time.sleep(_POLL_SECONDS)
        return True

    def begin(self, step: int) -> None:
        """Start to listen for a request to stop. `step` is the number of steps that are done
        already.
        """
        self._asked = (step, time.monotonic())
        if self.is_complete:
            worker.should_stop()  # from here on, a SIGTERM does not end the process

    def should_stop(self, step: int) -> bool:
        """Return whether all ranks stop now, after step `step`. Every rank must call this after
        every step.
        """
        if self.size == 1:
            return worker.should_stop()
        if not self.is_complete or step < self._ask_at:
            return False
        before, since = self._asked
        now = time.monotonic()
        seconds = (now - since) / max(1, step - before)
        torch: Any = sys.modules["torch"]
        heard = torch.tensor([float(worker.should_stop()), seconds], device=self._device)
        torch.distributed.all_reduce(heard, torch.distributed.ReduceOp.MAX)
        stops, seconds = heard.tolist()
        self._asked = (step, now)
        steps = ASK_SECONDS / max(seconds, 1e-6)
        self._ask_at = step + max(1, min(int(steps), MOST_STEPS_BETWEEN))
        return bool(stops)

    def count_saved(self, step: int) -> str:
        """Record in the store that this rank has saved step `step`, and return the key to pass to
        `have_saved`.
        """
        key = f"zerotools/saved/{step}/{_ordinal(f'saved/{step}')}"
        if self._store is not None:
            self._store.add(key, 1)
        return key

    def have_saved(self, key: str, seconds: float = 0.0) -> bool:
        """Wait at most `seconds`, and return whether all ranks have saved the step that `key`
        belongs to.
        """
        return self.size == 1 or (self.is_complete and self._has_reached(key, seconds))


def _store_of(size: int) -> Any:
    """Return the store of torch's default process group; None if the group does not have `size`
    ranks."""
    distributed = getattr(sys.modules.get("torch"), "distributed", None)
    if size == 1 or distributed is None or not distributed.is_available():
        return None
    if not distributed.is_initialized() or distributed.get_world_size() != size:
        return None
    try:
        return distributed.distributed_c10d._get_default_store()
    except (AttributeError, RuntimeError, ValueError):  # MPI has none
        return None
