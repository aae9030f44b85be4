"""Collects the claims on keys of one job. A claim is the value that one source gives to one key of
the job file.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from zerotools.jobs.binding.bind import format_value
from zerotools.jobs.imports.reading.look_up_job_keys import accepts_value, job_keys, look_up


def claims_of_job(tree: Mapping[str, Any], source: str) -> Claims:
    """Return the values in the job file as claims.

    Invalid values are left out: the job is refused later because of these values.
    """
    claims = Claims()
    for key in job_keys():
        value = look_up(tree, key)
        if value is not None and accepts_value(key, value):
            claims.add(key, value, f"{source} {key}")
    return claims


@dataclass(frozen=True)
class Claim:
    """The value that one source gives to one key of the job.

    Attributes:
        place: the source, such as `ds.json:12 gradient_clipping`.
        shown: the value as it is written in the source.
        weak: the value is the default of a launcher. Any other claim overrides it.
    """

    key: str
    value: Any
    place: str
    shown: Any
    weak: bool = False


@dataclass
class Claims:
    """All claims on keys of one job, in the order of their sources."""

    claims: list[Claim] = field(default_factory=list)

    def add(
        self, key: str, value: Any, place: str, *, shown: Any = None, weak: bool = False
    ) -> None:
        """Record that `place` sets `key` to `value`."""
        self.claims.append(Claim(key, value, place, value if shown is None else shown, weak))

    def of(self, key: str) -> Claim | None:
        """Return the claim that determines `key`: the first claim that is not weak, or else the
        first weak claim. Return None if there is no claim.
        """
        about = [claim for claim in self.claims if claim.key == key]
        return next((claim for claim in about if not claim.weak), about[0] if about else None)

    def about(self) -> list[str]:
        """Return every key that has a claim."""
        return list(dict.fromkeys(claim.key for claim in self.claims))

    def contradictions(self) -> Iterator[str]:
        """Yield a sentence for each key with two different claims that are not weak.

        The sentence names both sources.
        """
        for key in self.about():
            strong = [claim for claim in self.claims if claim.key == key and not claim.weak]
            for other in strong[1:]:
                if not same_meaning(strong[0].value, other.value):
                    yield (
                        f"{key}: {strong[0].place} says {format_value(strong[0].shown)}, "
                        f"{other.place} says {format_value(other.shown)}; make them agree"
                    )
                    break


def same_meaning(left: Any, right: Any) -> bool:
    """Return whether two values have the same meaning. For example, 1 and 1.0 have the same
    meaning, but true and 1 do not.
    """
    if isinstance(left, (list, tuple)) and isinstance(right, (list, tuple)):
        return len(left) == len(right) and all(map(same_meaning, left, right))
    return isinstance(left, bool) == isinstance(right, bool) and bool(left == right)
