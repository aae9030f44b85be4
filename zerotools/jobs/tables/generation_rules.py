"""What evaluation by generation demands of a job."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields

from zerotools.jobs.binding.bind import show
from zerotools.jobs.tables.data import EvalSpec
from zerotools.jobs.tables.data_rules import KINDS
from zerotools.jobs.tables.spec import JobSpec

KEYS = ("max_predictions", "max_new_tokens", "num_beams")
"""The keys of `[eval]` that say how to generate."""


def check_generation(spec: JobSpec) -> Iterator[str]:
    """What is wrong with the keys of `[eval]` that are about generation."""
    wanted = spec.eval
    if not wanted.predict_with_generate:
        defaults = {item.name: item.default for item in fields(EvalSpec)}
        for name in KEYS:
            value = getattr(wanted, name)
            if value != defaults[name]:
                yield (
                    f"eval.{name} = {show(value)}: nothing is generated; set "
                    "eval.predict_with_generate = true, or leave it out"
                )
        return
    given = [kind for kind in KINDS if getattr(spec.data, kind)]
    if given and "examples" not in given:
        yield (
            f"eval.predict_with_generate = true: data.{given[0]} has no prompts and no responses "
            "to compare with; use data.examples, or leave it out"
        )
    most, used = wanted.max_predictions, wanted.max_sequences
    if most is not None and used is not None and most > used:
        yield (
            f"eval.max_predictions = {most}: is more than eval.max_sequences, which is {used}; "
            "lower it, or leave it out"
        )


def max_new_tokens_of(spec: JobSpec) -> int:
    """Tokens that are generated at most for a prompt."""
    return spec.eval.max_new_tokens or spec.data.max_target_length
