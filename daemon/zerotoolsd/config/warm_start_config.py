"""`[warm_start]` of `zerotoolsd.toml`: fork servers that have torch imported."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from zerotools.core.counts import bytes_of
from zerotools.jobs.binding.bind import show
from zerotools.jobs.binding.declaration import key
from zerotools.jobs.binding.durations import seconds_of


@dataclass(frozen=True, kw_only=True)
class WarmStartConfig:
    """`[warm_start]`: jobs of the built-in trainer that find torch imported; see
    [start jobs without waiting for imports](../how-to/warm-start.md)."""

    enabled: bool = key(
        "Keep one process per Python environment with torch and transformers imported, and "
        "fork the ranks of later jobs from it.",
        default=False,
    )
    servers: int = key(
        "Largest number of these processes; the least recently used one ends for another.",
        default=2,
        minimum=1,
    )
    idle: int | str = key(
        'How long such a process stays without a job: seconds, or text such as `"30m"`.',
        default="30m",
    )
    memory: int | str = key(
        'One that holds more memory than this ends: bytes, or text such as `"2GiB"`.',
        default="2GiB",
    )


def wrong_warm_start(config: WarmStartConfig) -> Iterator[str]:
    """Yield the errors in `[warm_start]`."""
    for name, value, read in (
        ("idle", config.idle, seconds_of),
        ("memory", config.memory, bytes_of),
    ):
        try:
            read(value)
        except ValueError as error:
            yield f"warm_start.{name} = {show(value)}: {error}"
