"""Stop requests for a run: the supervisor's file, which the first rank of a node reads, or a
SIGTERM at any rank."""

from __future__ import annotations

import signal
from dataclasses import dataclass
from pathlib import Path

from zerotoolsd.trainer.rank.settings import Rank, stop_reason


@dataclass
class StopRequest:
    """A request to stop, as seen by this rank. The ranks agree on it with each step's loss."""

    run_dir: Path
    rank: Rank
    _signalled: bool = False

    def listen(self) -> None:
        """Take a SIGTERM as a request, from here on. For the main thread."""
        signal.signal(signal.SIGTERM, self._on_term)

    def _on_term(self, *_: object) -> None:
        self._signalled = True

    def asked(self) -> bool:
        """Return whether this rank was asked to stop."""
        return self._signalled or (self.rank.leads_node and stop_reason(self.run_dir) is not None)

    def own_reason(self) -> str | None:
        """Return why this rank was asked; None if it was not."""
        return self.reason() if self.asked() else None

    def reason(self) -> str:
        """Return the short reason, as far as this rank knows."""
        return stop_reason(self.run_dir) or ("SIGTERM" if self._signalled else "asked")
