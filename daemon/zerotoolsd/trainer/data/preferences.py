"""Pairs of answers, of which one was chosen: what DPO trains on.

The store of examples has the chosen and the rejected answer of each pair, one after the other.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from zerotoolsd.trainer.data.examplestore import Examples
from zerotoolsd.trainer.data.sequences import IGNORED, Example

References = npt.NDArray[np.float32]
"""Of each pair, the log-probabilities of the chosen and the rejected answer; shape [pairs, 2]."""


@dataclass(frozen=True, eq=False)
class Preference(Example):
    """The chosen answer of a pair, and with it the rejected one; `reference` has what the start
    weights say of both."""

    rejected: Example = field(default_factory=lambda: Example((), ()))
    reference: tuple[float, float] = (0.0, 0.0)

    @property
    def counts(self) -> bool:
        """Whether there is anything to say."""
        return any(number != IGNORED for number in self.targets)

    def silent(self) -> Preference:
        """The same, with nothing to say."""
        targets = np.full(len(self.targets), IGNORED)
        return replace(self, targets=targets, rejected=self.rejected.silent())


class PreferencePairs:
    """The pairs of a source. They have references once these are `known`."""

    def __init__(self, examples: Examples) -> None:
        self._examples = examples
        self._references: References | None = None

    def __len__(self) -> int:
        return len(self._examples) // 2

    def known(self, references: References) -> None:
        """Take the references of all pairs."""
        assert references.shape == (len(self), 2)
        self._references = references

    def example(self, number: int) -> Preference:
        """The pair of that number."""
        chosen, rejected = (self._examples.example(2 * number + which) for which in (0, 1))
        reference = (0.0, 0.0)
        if self._references is not None:
            reference = (float(self._references[number, 0]), float(self._references[number, 1]))
        return Preference(chosen.inputs, chosen.targets, (), rejected, reference)

    def predicted(self, number: int) -> int:
        """A pair is one of those that the loss is the mean of."""
        return 1

    def size(self, number: int) -> int:
        """The tokens of both answers, each with its prompt."""
        return self._examples.size(2 * number) + self._examples.size(2 * number + 1)

    def digest(self) -> str:
        """As `Examples.digest`: data, tokenizer and lengths decide it together."""
        return self._examples.digest()
