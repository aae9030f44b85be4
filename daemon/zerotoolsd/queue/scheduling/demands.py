"""What queued jobs ask of the machine."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class CapabilityNeed:
    """The least compute capability of GPUs that will do, what needs it, and what to set instead."""

    least: tuple[int, int]
    what: str
    instead: str


@dataclass(frozen=True, kw_only=True, slots=True)
class ResourceNeed:
    """What a job needs: `world_size` of `gpus` (any of so many, or a list of indices and UUIDs),
    or so many CPU ranks. Jobs of the same need are the same to the scheduler, but for their age
    and how long they last."""

    world_size: int
    gpus: int | tuple[int | str, ...] | None
    capability: CapabilityNeed | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Request:
    """What a queued job asks for.

    `lasts` is how many seconds it holds that at most; None: nobody knows.
    """

    job_id: int
    need: ResourceNeed
    lasts: float | None = None


def count(number: int, what: str) -> str:
    """`2 GPUs`, `1 GPU`."""
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
