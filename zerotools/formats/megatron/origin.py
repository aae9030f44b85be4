"""What Megatron says of a checkpoint beside its tensors."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from zerotools.core.checkpoint import Opaque, Origin, Problem

FORMAT = "megatron"
_ITERATION = re.compile(r"iter_(\d{1,18})")
_PARALLEL = {
    "tensor_model_parallel_size": "TP",
    "pipeline_model_parallel_size": "PP",
    "expert_model_parallel_size": "EP",
}


@dataclass(frozen=True, slots=True)
class MegatronFacts:
    """`sizes` are the degrees of parallelism by short name, as far as they are recorded."""

    iteration: int | None
    sizes: Mapping[str, int]

    @property
    def model_parallel(self) -> int | None:
        """How many ranks hold one model, where that is said."""
        known = [self.sizes.get(name) for name in ("TP", "PP")]
        return known[0] * known[1] if known[0] and known[1] else None


def facts_of(tree: Any) -> MegatronFacts:
    """Of the dict in common.pt or in a rank's file."""
    table = tree if isinstance(tree, Mapping) else {}
    args = table.get("args")
    values = args.state if isinstance(args, Opaque) and isinstance(args.state, Mapping) else {}
    sizes = {short: _count(values.get(name)) for name, short in _PARALLEL.items()}
    return MegatronFacts(
        _count(table.get("iteration")), {s: n for s, n in sizes.items() if n is not None}
    )


def _count(value: Any) -> int | None:
    return value if type(value) is int and 0 <= value < 2**62 else None


def origin_of(
    path: Path, title: str, facts: MegatronFacts, *, ranks: int | None, notes: tuple[str, ...] = ()
) -> Origin:
    """The origin, with the sentence why nothing is made of it."""
    named = _ITERATION.fullmatch(path.name)
    step = facts.iteration if facts.iteration is not None else int(named[1]) if named else None
    when = "" if step is None else f" of iteration {step}"
    sizes = ", ".join(f"{short} {n}" for short, n in facts.sizes.items())
    return Origin(
        FORMAT,
        path,
        world_size=ranks,
        step=step,
        notes=(*([f"saved with {sizes}"] if sizes else []), *notes),
        title=title,
        refusal=(
            f"{path} is {title}{when}, which zerotools recognises and does not convert: its names "
            "and shards are Megatron's own; export it with Megatron-Bridge (or Megatron-LM's "
            "tools/checkpoint/convert.py) to Hugging Face's format, and pass that directory"
        ),
    )


def disagreement(path: Path, facts: MegatronFacts, name: str) -> list[Problem]:
    """A directory that is named after another iteration than its file says."""
    named = _ITERATION.fullmatch(path.name)
    if named is None or facts.iteration is None or int(named[1]) == facts.iteration:
        return []
    said = f"{path / name} is of iteration {facts.iteration}, and its directory of {int(named[1])}"
    return [Problem(said, name)]
