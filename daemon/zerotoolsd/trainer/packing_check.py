"""Whether a model keeps the examples of a packed sequence apart, asked of the model itself."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from zerotools.core.errors import Unsupported
from zerotoolsd.trainer.data.packing import join
from zerotoolsd.trainer.data.sequences import Example, ExamplePool
from zerotoolsd.trainer.engine.protocol import Engine

EXPERTS_TOLERANCE = 1e-3
"""Where experts take the tokens that are theirs, rounding depends on how many these are."""
_NUMBERS_OF_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")


def check_packing(engine: Engine, packs: ExamplePool, config: Any) -> None:
    """Refuse a model that sees from one segment of a packed sequence into the next.

    An example has to cost the same whatever stands before it. All ranks call it together.

    Raises:
        Unsupported: it costs something else.
    """
    text = config.get_text_config()
    first = _first_segment(packs.example(0))
    other = replace(first, inputs=[(token + 1) % text.vocab_size for token in first.inputs])
    costs = [engine.evaluate([join([before.silent(), first])]).loss for before in (first, other)]
    has_experts = any(hasattr(text, name) for name in _NUMBERS_OF_EXPERTS)
    if not math.isclose(*costs, rel_tol=EXPERTS_TOLERANCE if has_experts else 0.0, abs_tol=0.0):
        raise Unsupported(
            "data.packing: in this model one packed example influences the next (the loss of one "
            f"example is {costs[0]:.6g} after one and {costs[1]:.6g} after another): leave it out"
        )


def _first_segment(example: Example) -> Example:
    length = example.segments[0]
    return Example(example.inputs[:length], example.targets[:length])
