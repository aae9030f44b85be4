"""The first examples of a job as the model gets them, for people."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from zerotoolsd.trainer.data.encoding.encoded import SAID, Encoded, Marked, bare

MOST_BYTES = 40_000
"""Of the parts and places of all examples together, as JSON: the daemon takes an answer of 64 KiB,
and notes are in it, too."""
MOST_OF_PLACE = 4
"""A place takes at most one in so many of an example's bytes."""
BINS = 8
Decode = Callable[[list[int]], str]


@dataclass
class SampleView:
    """Counts examples, and keeps the text of the first `most`.

    A part of a text is trained if the model learns its tokens.
    """

    most: int
    decode: Decode
    _shown: list[dict[str, Any]] = field(default_factory=list)
    _lengths: list[int] = field(default_factory=list)
    _trained: int = 0
    _seen: Counter[int] = field(default_factory=Counter)

    @property
    def lengths(self) -> Sequence[int]:
        """The tokens of each example."""
        return self._lengths

    def add(self, example: Encoded) -> None:
        """Count an example."""
        trained = int(np.count_nonzero(example.marked >= SAID))
        self._lengths.append(len(example.marked))
        self._trained += trained
        self._seen[hash(example.marked.tobytes())] += 1
        if len(self._shown) < self.most:
            left = MOST_BYTES // self.most
            place = _within(example.place, left // MOST_OF_PLACE)
            parts, cut = self._parts(example.marked, left - json_bytes(place))
            self._shown.append(
                {
                    "place": place,
                    "parts": parts,
                    "text_cut": cut,
                    "tokens": len(example.marked),
                    "trained_tokens": trained,
                    "tokens_lost": example.source_lost + example.target_lost,
                }
            )

    def _parts(self, marked: Marked, left: int) -> tuple[list[dict[str, Any]], bool]:
        """Return the text in parts of at most `left` bytes as JSON, each with whether it is
        trained, and whether the text was cut."""
        parts: list[dict[str, Any]] = []
        turns = np.flatnonzero(np.diff(marked >= SAID)) + 1
        for ids in np.split(marked, turns) if len(marked) else ():
            text = self.decode(bare(ids).tolist())
            part = {"text": "", "trained": bool(ids[0] >= SAID)}
            shown = _within(text, left - json_bytes(part))
            if shown:
                parts.append({**part, "text": shown})
                left -= json_bytes([parts[-1]])
            if len(shown) < len(text):
                return parts, True
        return parts, False

    def answer(self, empty: int) -> dict[str, Any]:
        """Return the findings as JSON values; `empty` examples had no prompt or no answer."""
        return {
            "examples": self._shown,
            "looked_at": len(self._lengths),
            "empty": empty,
            "duplicates": sum(count - 1 for count in self._seen.values()),
            "tokens": sum(self._lengths),
            "trained_tokens": self._trained,
            "lengths": list(self._bins()),
            "packed": None,
            "epoch": None,
            "memory": None,
        }

    def _bins(self) -> Iterator[list[int]]:
        """Yield (shortest, longest, examples) of ranges of equal width."""
        if not self._lengths:
            return
        least, most = min(self._lengths), max(self._lengths)
        width = max(1, -(-(most - least + 1) // BINS))
        counts = Counter((length - least) // width for length in self._lengths)
        for number in range((most - least) // width + 1):
            begin = least + number * width
            yield [begin, min(most, begin + width - 1), counts[number]]


def json_bytes(value: object) -> int:
    """Return the size of `value` as `dry_run` prints it."""
    return len(json.dumps(value, ensure_ascii=False).encode("utf-8", "surrogatepass"))


def _within(text: str, most: int) -> str:
    """Return the beginning of `text` that takes at most `most` bytes as JSON."""
    text = text[: max(0, most)]
    while (over := json_bytes(text) - most) > 0 and text:
        # Each character takes at most six bytes: of a control character, in JSON.
        text = text[: -max(1, over // 6)]
    return text
