"""Rules for `--rename` that would make names meet that match in part."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping

from zerotools.ops.weights.renaming import namer, parse_rule

Shapes = Mapping[str, tuple[int, ...]]

_INSERTED = (
    r"_orig_mod\.",
    r"_fsdp_wrapped_module\.",
    r"_checkpoint_wrapped_module\.",
    r"base_layer\.",
)
"""The parts of names that torch.compile, FSDP, activation checkpointing and PEFT insert."""
_MOST_ENDS = 4
_LEAST_SHARE = 0.5
MOST_PROPOSALS = 2


def propose(ours: Shapes, theirs: Shapes) -> dict[str, int]:
    """Return rules to give together, in this order, with the number of weights that each would
    match. `ours` and `theirs` are weights that the other side lacks. Each rule must match weights
    that the rules before it leave."""
    found: dict[str, int] = {}
    for _ in range(MOST_PROPOSALS):
        rule, count = _best(ours, theirs)
        if not count:
            break
        found[rule] = count
        ours, theirs = _left(ours, theirs, rule)
    return found


def _best(ours: Shapes, theirs: Shapes) -> tuple[str, int]:
    """Return the most useful rule, and for how many names it works."""
    counts = {**_insertions(ours, theirs), **_prefixes(ours, theirs)}
    least = max(1.0, _LEAST_SHARE * min(len(ours), len(theirs)))
    useful = {rule: count for rule, count in counts.items() if count >= least}
    return min(useful.items(), key=lambda each: (-each[1], len(each[0])), default=("", 0))


def _left(ours: Shapes, theirs: Shapes, rule: str) -> tuple[Shapes, Shapes]:
    """Return the weights without a match after a rule, under the names that it makes."""
    new_name = namer((), [parse_rule(rule)])
    if any(new_name(name) != name for name in ours):
        ours = {new_name(name): shape for name, shape in ours.items()}
    else:
        theirs = {new_name(name): shape for name, shape in theirs.items()}
    met = {name for name, shape in ours.items() if theirs.get(name) == shape}
    return (
        {name: shape for name, shape in ours.items() if name not in met},
        {name: shape for name, shape in theirs.items() if name not in met},
    )


def _insertions(ours: Shapes, theirs: Shapes) -> dict[str, int]:
    """Return rules that remove a part, from either side."""
    found = {}
    for pattern in _INSERTED:
        for side, other in ((ours, theirs), (theirs, ours)):
            short = {re.sub(pattern, "", n): s for n, s in side.items() if re.search(pattern, n)}
            matched = sum(other.get(name) == shape for name, shape in short.items())
            if matched:
                found[f"{pattern}="] = matched
    return found


def _prefixes(ours: Shapes, theirs: Shapes) -> dict[str, int]:
    """Return rules that replace one beginning of names by another."""
    by_end: dict[str, list[str]] = {}
    for name in theirs:
        for _, end in _cuts(name):
            by_end.setdefault(end, []).append(name)
    counts: Counter[tuple[str, str]] = Counter()
    for name, shape in ours.items():
        for beginning, end in _cuts(name):
            others = by_end.get(end, [])
            if len(others) <= _MOST_ENDS:  # `weight` is the end of every name
                counts.update(
                    (beginning, other.removesuffix(end))
                    for other in others
                    if theirs[other] == shape
                )
    found = {}
    for (beginning, other), _ in counts.most_common(2 * MOST_PROPOSALS):
        renamed = {other + n.removeprefix(beginning): n for n in ours if n.startswith(beginning)}
        matched = sum(theirs.get(new) == ours[old] for new, old in renamed.items())
        found[f"^{re.escape(beginning)}={_replacement(other)}"] = matched
    return found


def _cuts(name: str) -> Iterator[tuple[str, str]]:
    """Yield every pair of parts of a name, cut at a dot, which stays with the beginning."""
    yield "", name
    for found in re.finditer(r"\.", name):
        yield name[: found.end()], name[found.end() :]


def _replacement(text: str) -> str:
    return text.replace("\\", r"\\")
