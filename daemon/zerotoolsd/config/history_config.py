"""`[history]` of `zerotoolsd.toml`: the stored history of the machine."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from zerotools.core.counts import bytes_of
from zerotools.jobs.binding.bind import show
from zerotools.jobs.binding.declaration import key

LEAST_BYTES = 1 << 20


@dataclass(frozen=True, kw_only=True)
class HistoryConfig:
    """`[history]`: memory and load of GPUs, host and jobs over time, for `monitor --history`; see
    [watch the machine](../how-to/watch-the-machine.md)."""

    enabled: bool = key(
        "Keep it, in `history.sqlite3` of the state directory: each second of the last hour, 10 "
        "seconds of a day, minutes of 30 days; the peaks of every attempt for ever.",
        default=True,
    )
    seconds: float = key(
        "Time between two samples while jobs run; ten times as long while none does.",
        default=1.0,
        minimum=0.1,
    )
    most_bytes: int | str = key(
        "The file does not grow beyond this: the oldest goes. Bytes, or text such as "
        '`"64MiB"`, at least 1 MiB.',
        default="64MiB",
    )


def wrong_history(config: HistoryConfig) -> Iterator[str]:
    """Yield the errors in `[history]`."""
    where = f"history.most_bytes = {show(config.most_bytes)}"
    try:
        if bytes_of(config.most_bytes) < LEAST_BYTES:
            yield f"{where}: must be at least 1MiB"
    except ValueError as error:
        yield f"{where}: {error}"
