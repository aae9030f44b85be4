"""Pair the tensors of two checkpoints by name and role, and propose `--rename` rules that pair
more.

A tensor may have different names or roles in the two checkpoints: formats of weights do not
distinguish parameters from buffers, a tied tensor may have either of its names, and a checkpoint
may lack 16-bit copies of masters. Such tensors are paired too.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from zerotools.core.checkpoint import Checkpoint, Key
from zerotools.core.counts_and_sizes import count_text
from zerotools.core.errors import BadRequest
from zerotools.ops.weights.select_and_rename import (
    RenameRule,
    name_function,
    name_matcher,
    parse_rule,
    rename_tensors,
)

WEIGHT, COPY, BUFFER = "param", "param16", "buffer"
_SHOWN = 3


@dataclass(frozen=True, slots=True)
class Pair:
    """A tensor that both checkpoints have, with its key in each.

    `is_copy` is True if one checkpoint has the fp32 master, and the other only the 16-bit weight of
    that name.
    """

    name: str
    role: str
    a: Key
    b: Key
    is_copy: bool = False


class Side:
    """One of the two checkpoints, with its keys after `--rename`.

    `keys` maps each key after renaming to the stored key, and includes tied names. `own` is the
    same mapping without tied names.
    """

    def __init__(self, checkpoint: Checkpoint, new_name: Callable[[str], str]) -> None:
        """Rename the tensors. Raises BadRequest if two names would become the same name."""
        self.checkpoint = checkpoint
        self.new_name = new_name
        rename_tensors(checkpoint, new_name)  # refuses names that become one
        self.keys = {_compared(key, new_name): key for key in checkpoint.tensors}
        self.own = dict(self.keys)
        by_name: dict[str, list[Key]] = {}
        for key in checkpoint.tensors:
            by_name.setdefault(key.name, []).append(key)
        for alias, holder in checkpoint.aliases.items():
            for key in by_name.get(holder, ()):
                self.keys.setdefault(_compared(Key(alias, key.role), new_name), key)

    @property
    def weights(self) -> dict[str, tuple[int, ...]]:
        """The shapes of the weights keyed by name."""
        tensors = self.checkpoint.tensors
        return {k.name: tensors[key].shape for k, key in self.keys.items() if k.role == WEIGHT}


def _compared(key: Key, new_name: Callable[[str], str]) -> Key:
    return Key(new_name(key.name), WEIGHT if key.role == BUFFER else key.role)


@dataclass(frozen=True)
class Pairing:
    """The pairs of tensors, and the tensors that only one checkpoint has.

    `only_a` and `only_b` are the tensors that only A or only B has, as pairs of the key after
    `--rename` and the stored key. `notes` are sentences about tied names.
    """

    pairs: tuple[Pair, ...]
    only_a: tuple[tuple[Key, Key], ...]
    only_b: tuple[tuple[Key, Key], ...]
    notes: tuple[str, ...]


def renamed_sides(
    a: Checkpoint, b: Checkpoint, rules: Sequence[RenameRule]
) -> tuple[Side, Side, list[str]]:
    """Return both checkpoints under the names that the rules give, and a note for each rule without
    effect. A rule applies to A, or to B if it matches no name of A.

    Raises:
        BadRequest: two names of a checkpoint would become the same name.
    """
    chosen: tuple[list[RenameRule], list[RenameRule]] = ([], [])
    notes = []
    for rule in rules:
        for side, own in zip((a, b), chosen, strict=True):
            new_name = name_function((), own)
            if any(rule.pattern.search(new_name(key.name)) for key in side.tensors):
                own.append(rule)
                break
        else:
            notes.append(f"no name in A or B matches --rename {rule.pattern.pattern!r}")
    return Side(a, name_function((), chosen[0])), Side(b, name_function((), chosen[1])), notes


def pair_up(a: Side, b: Side, roles: Collection[str] = (), include: Sequence[str] = ()) -> Pairing:
    """Pair the tensors that both checkpoints have.

    `roles` selects the roles of tensors; `param` includes buffers. `include` are globs that select
    names. An empty one selects all tensors.

    Raises:
        BadRequest: neither checkpoint has a selected tensor.
    """
    is_included = name_matcher(include, ())

    def is_asked(key: Key) -> bool:
        known = {key.role, *(side.keys[key].role for side in (a, b) if key in side.keys)}
        return is_included(key.name) and (not roles or not known.isdisjoint(roles))

    ours = {key: own for key, own in a.keys.items() if is_asked(key)}
    theirs = {key: own for key, own in b.keys.items() if is_asked(key)}
    if (roles or include) and not ours and not theirs:
        known = sorted({key.role for side in (a, b) for key in side.checkpoint.tensors})
        raise BadRequest(
            "neither checkpoint has a tensor that matches --role and --include; their roles "
            f"are {', '.join(known)}"
        )
    pairs: dict[tuple[Key, Key], Pair] = {}
    for key, own in ours.items():
        if key in theirs:  # of a tensor that both have under several names, the first
            pairs.setdefault((own, theirs[key]), Pair(key.name, key.role, own, theirs[key]))
    for key, own, weight in _copies(ours, b):
        pairs.setdefault((own, weight), Pair(key.name, COPY, own, weight, is_copy=True))
    for key, own, weight in _copies(theirs, a):
        pairs.setdefault((weight, own), Pair(key.name, COPY, weight, own, is_copy=True))
    used_a, used_b = {own for own, _ in pairs}, {own for _, own in pairs}
    notes = [
        f"{word} has {count_text(len(tied), 'tied name')} that {lacking} does not have: "
        + ", ".join(tied[:_SHOWN])
        + (", ..." if len(tied) > _SHOWN else "")
        for word, lacking, tied in (
            ("A", "B", _tied_alone(ours, b, used_a)),
            ("B", "A", _tied_alone(theirs, a, used_b)),
        )
        if tied
    ]
    return Pairing(
        tuple(pairs.values()),
        tuple((key, own) for key, own in ours.items() if own not in used_a and key in a.own),
        tuple((key, own) for key, own in theirs.items() if own not in used_b and key in b.own),
        tuple(notes),
    )


def _copies(selected: Mapping[Key, Key], other: Side) -> Iterator[tuple[Key, Key, Key]]:
    """Yield each 16-bit weight in `selected` that `other` has only as an fp32 master.

    Each item has the key after `--rename`, the stored key, and the stored key of the master.
    """
    for key, own in selected.items():
        weight = other.keys.get(Key(key.name, WEIGHT))
        if key.role == COPY and key not in other.keys and weight is not None:
            yield key, own, weight


def _tied_alone(selected: Mapping[Key, Key], other: Side, used: Collection[Key]) -> list[str]:
    """Return the names in `selected` that `other` lacks, of weights that were compared under
    another tied name. `used` are the stored keys of all compared tensors."""
    lacking = (key for key in selected if key.role == WEIGHT and key not in other.keys)
    return [key.name for key in lacking if selected[key] in used]


Shapes = Mapping[str, tuple[int, ...]]

_INSERTED = (
    r"_orig_mod\.",
    r"_fsdp_wrapped_module\.",
    r"_checkpoint_wrapped_module\.",
    r"base_layer\.",
)
"""Words that torch.compile, FSDP, activation checkpointing and PEFT insert into names."""
_MOST_ENDS = 4
_LEAST_SHARE = 0.5
MOST_PROPOSALS = 2


def propose(ours: Shapes, theirs: Shapes) -> dict[str, int]:
    """Return `--rename` rules, each with the number of weights that it would pair. `ours` and
    `theirs` are the weights of A and B without a partner. A rule pairs weights that the rules
    before it leave without a partner."""
    found: dict[str, int] = {}
    for _ in range(MOST_PROPOSALS):
        rule, count = _best(ours, theirs)
        if not count:
            break
        found[rule] = count
        ours, theirs = _unpaired(ours, theirs, rule)
    return found


def _best(ours: Shapes, theirs: Shapes) -> tuple[str, int]:
    """Return the rule that pairs the most weights, and their number; ("", 0) without a rule."""
    counts = {**_insertions(ours, theirs), **_prefixes(ours, theirs)}
    least = max(1.0, _LEAST_SHARE * min(len(ours), len(theirs)))
    useful = {rule: count for rule, count in counts.items() if count >= least}
    return min(useful.items(), key=lambda each: (-each[1], len(each[0])), default=("", 0))


def _unpaired(ours: Shapes, theirs: Shapes, rule: str) -> tuple[Shapes, Shapes]:
    """Return the renamed weights that the rule leaves without a partner."""
    new_name = name_function((), [parse_rule(rule)])
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
    """Return the rules that remove an extra component, such as `base_layer`, from the names of one
    checkpoint, each with the number of tensors that it pairs."""
    found = {}
    for pattern in _INSERTED:
        for side, other in ((ours, theirs), (theirs, ours)):
            short = {re.sub(pattern, "", n): s for n, s in side.items() if re.search(pattern, n)}
            matched = sum(other.get(name) == shape for name, shape in short.items())
            if matched:
                found[f"{pattern}="] = matched
    return found


def _prefixes(ours: Shapes, theirs: Shapes) -> dict[str, int]:
    """Return the rules that replace one prefix of names by another, each with the number of tensors
    that it pairs."""
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
    """Yield ("", name), then the name split after each of its dots."""
    yield "", name
    for found in re.finditer(r"\.", name):
        yield name[: found.end()], name[found.end() :]


def _replacement(text: str) -> str:
    return text.replace("\\", r"\\")
