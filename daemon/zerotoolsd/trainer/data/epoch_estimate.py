"""Estimates an epoch from the first examples: tokens, sequences and steps."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from zerotools.jobs.tables.spec import JobSpec
from zerotoolsd.trainer.data.sample_view import SampleView


@dataclass
class BytesRead:
    """The number of bytes that were read of each file."""

    _files: dict[Path, int] = field(default_factory=dict)

    def of(self, path: Path) -> Callable[[int], None]:
        """Return the function that records the bytes read of a file."""

        def seen(nbytes: int) -> None:
            self._files[path] = nbytes

        return seen

    def share(self, paths: Sequence[Path] | None) -> float | None:
        """Return the part of all `paths` that was read, 0 to 1; None if unknown, as for non-JSON
        files."""
        read = sum(self._files.values())
        if not paths or not read:
            return None
        total = sum(path.stat().st_size for path in paths)
        return min(1.0, read / total) if total else None


def with_epoch(
    view: SampleView, empty: int, spec: JobSpec, packed_length: int | None, share: float | None
) -> Mapping[str, Any]:
    """Return the answer of `view`, with the fill of packed sequences and the estimated epoch.

    The examples are `share` of the data.
    """
    answer = view.answer(empty)
    count = len(view.lengths) // (2 if spec.data.preferences else 1)
    sequences = count
    if packed_length is not None and count:
        sequences = _packed(view.lengths, packed_length)
        answer["packed"] = {
            "sequences": sequences,
            "length": packed_length,
            "filled": answer["tokens"] / (sequences * packed_length),
        }
    if share and count:
        in_all = math.ceil(sequences / share)
        answer["epoch"] = {
            "tokens": round(answer["tokens"] / share),
            "sequences": in_all,
            "steps": math.ceil(in_all / spec.train.batch_size),
            "operations": None,
        }
    return answer


def _packed(lengths: Sequence[int], most: int) -> int:
    """Return how many sequences the examples fill, one after the other as long as they fit."""
    sequences, filled = 0, most
    for length in (each - 1 for each in lengths):  # the last token is not read
        if filled + length > most:
            sequences, filled = sequences + 1, 0
        filled += length
    return sequences
