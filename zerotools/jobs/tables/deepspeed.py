"""`[deepspeed]`: the keys of the engine `deepspeed`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from zerotools.jobs.binding.declaration import key


@dataclass(frozen=True, kw_only=True)
class DeepSpeedSpec:
    """`[deepspeed]`: DeepSpeed's own configuration, for `engine = "deepspeed"`."""

    config: str | Mapping[str, Any] | None = key(
        "DeepSpeed's JSON: its path, or a table here. `zerotools submit` resolves what is "
        '`"auto"` in it, holds it against the job, and queues the result with the job.',
        default=None,
    )

    @property
    def tree(self) -> Mapping[str, Any]:
        """The configuration; empty where there is none yet, or it is not read yet."""
        return self.config if isinstance(self.config, Mapping) else {}
