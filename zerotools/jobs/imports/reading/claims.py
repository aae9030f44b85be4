"""The sources of a job file's keys: several may set a key, if they agree."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from zerotools.jobs.binding.bind import show


@dataclass(frozen=True)
class Claim:
    """`place` is the source (`ds.json:12 gradient_clipping`), `value` the value of the job key.

    `shown` is the value as it was written there. A `weak` claim is a launcher's default; any other
    overrides it.
    """

    key: str
    value: Any
    place: str
    shown: Any
    weak: bool = False


@dataclass
class Claims:
    """All claims, in order."""

    said: list[Claim] = field(default_factory=list)

    def add(
        self, key: str, value: Any, place: str, *, shown: Any = None, weak: bool = False
    ) -> None:
        """Record that `place` sets `key` to `value`."""
        self.said.append(Claim(key, value, place, value if shown is None else shown, weak))

    def of(self, key: str) -> Claim | None:
        """Return the strongest claim on `key`, the first of equals."""
        about = [claim for claim in self.said if claim.key == key]
        return next((claim for claim in about if not claim.weak), about[0] if about else None)

    def about(self) -> list[str]:
        """Return every key with a claim."""
        return list(dict.fromkeys(claim.key for claim in self.said))

    def contradictions(self) -> Iterator[str]:
        """Yield a sentence for each key with two different claims, with both sources."""
        for key in self.about():
            strong = [claim for claim in self.said if claim.key == key and not claim.weak]
            for other in strong[1:]:
                if not same(strong[0].value, other.value):
                    yield (
                        f"{key}: {strong[0].place} says {show(strong[0].shown)}, "
                        f"{other.place} says {show(other.shown)}; make them agree"
                    )
                    break


def same(left: Any, right: Any) -> bool:
    """Return whether two values mean the same: 1 and 1.0 do, true and 1 do not."""
    if isinstance(left, (list, tuple)) and isinstance(right, (list, tuple)):
        return len(left) == len(right) and all(map(same, left, right))
    return isinstance(left, bool) == isinstance(right, bool) and bool(left == right)
