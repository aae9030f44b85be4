"""The values that the page of a comparison shows, as JSON for `diff.js` in `ops.picture`."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from zerotools.core.checkpoint import Origin
from zerotools.core.dtypes import PRECISIONS
from zerotools.core.errors import BadRequest
from zerotools.core.layer_names import in_order_of_numbers, layers_in_order, place_of
from zerotools.core.target import LOOSE, WEIGHTS
from zerotools.io.numeric.compare_values import Distance
from zerotools.ops.comparison.diff_result import (
    CAST,
    DTYPE,
    EQUAL,
    ONLY_A,
    ONLY_B,
    SHAPE,
    UNREADABLE,
    CheckpointDiff,
    RunComparison,
    RunDifference,
    TensorDifference,
)
from zerotools.ops.comparison.pair_tensors import COPY

_UNMEASURED = (ONLY_A, ONLY_B, SHAPE, DTYPE, UNREADABLE)
_MOST_CHANGED = 10
_WEIGHTS = (*WEIGHTS, COPY)
_MOST_NAMED = 200
_MOST_PROBLEMS = 100


def diff_contents(pairs: Sequence[CheckpointDiff]) -> dict[str, Any]:
    """Return the values that the page shows. Each of `pairs` compares a checkpoint of a series with
    the next one.

    Keys:
        title, verdict, is_whole, facts, notes, problems, problem_count: the head of the page.
        is_unknown: True for a series of checkpoints that differ only in values, like those of a
            training. Its verdict is neither good nor bad.
        layers, kinds, roles: lists of names. All other values refer to a name by its index in these
            lists. The roles of weights come first.
        pairs: one object for each comparison. `changes` is a list of `[role, layer, relative norm,
            cosine, unchanged share]`. `most` lists the ten tensors of each role with the largest
            changes. `only_a`, `only_b` and `not_compared` have the number of such tensors and the
            first few names. `partial` lists `[role, layer]` of these tensors. `run` is a list of
            `[what, a, b]`.
        tensors: a list of `[name, role, layer, kind, relative norm, cosine, unchanged share]`, one
            for each measured tensor. It is None if `pairs` has several comparisons.

    Raises:
        BadRequest: equal tensors were not measured.
    """
    if not all(pair.has_changes for pair in pairs):
        raise BadRequest(
            "the change of layers was not measured; compare with changes=True (--changes)"
        )
    every = [each for pair in pairs for each in pair.tensors]
    layers = {name: n for n, name in enumerate(layers_in_order(each.name for each in every))}
    all_roles = dict.fromkeys(each.role for each in every)
    roles = {r: n for n, r in enumerate(sorted(all_roles, key=lambda role: role not in _WEIGHTS))}
    kinds = {k: n for n, k in enumerate(dict.fromkeys(place_of(e.name).kind for e in every))}
    problems = list(dict.fromkeys(_lettered_sentences(pairs, _problems)))
    is_whole = all(pair.is_equal for pair in pairs) and not problems
    is_series = len(pairs) > 1 and not problems and all(map(_is_training, pairs))
    origins = [pairs[0].a, *(pair.b for pair in pairs)]
    return {
        "title": (" to " if len(pairs) > 1 else " and ").join(
            str(origin.path) for origin in (origins[0], origins[-1])
        ),
        "verdict": _verdict(pairs),
        "is_whole": is_whole,
        "is_unknown": is_series and not is_whole,
        "facts": [[_letter(n), _described(origin)] for n, origin in enumerate(origins)],
        "notes": list(dict.fromkeys(_lettered_sentences(pairs, lambda pair: pair.notes))),
        "problems": problems[:_MOST_PROBLEMS],
        "problem_count": len(problems),
        "layers": list(layers),
        "roles": list(roles),
        "kinds": list(kinds),
        "pairs": [
            {
                "label": _label(number, pair),
                "changes": [
                    [roles[each.role], layers[each.layer], *_figures(each.distance)]
                    for each in pair.layers
                    if each.distance.elements > each.tensors  # not of numbers, such as `step`
                ],
                "most": [
                    [
                        each.name,
                        roles[each.role],
                        *_figures(each.distance),
                        _finite(each.max_abs),
                        each.differing,
                        0 if each.distance is None else each.distance.elements,
                    ]
                    for each in _most_changed(pair)
                ],
                "only_a": _named(pair, ONLY_A),
                "only_b": _named(pair, ONLY_B),
                "not_compared": _named(pair, SHAPE, DTYPE, UNREADABLE),
                "partial": sorted(
                    {
                        (roles[each.role], layers[place_of(each.name).layer])
                        for each in pair.tensors
                        if each.status in _UNMEASURED
                    }
                ),
                "run": _run_rows(pair.run),
            }
            for number, pair in enumerate(pairs)
        ],
        "tensors": [
            [
                each.name,
                roles[each.role],
                layers[place_of(each.name).layer],
                kinds[place_of(each.name).kind],
                *_figures(each.distance),
            ]
            for each in in_order_of_numbers(pairs[0].tensors)
            if each.distance is not None
        ]
        if len(pairs) == 1
        else None,
    }


def _run_rows(run: RunComparison | None) -> list[list[str]]:
    """Return rows `[what, value in A, value in B]`. What only one side records has no value."""
    if run is None:
        return []
    rows = [[each.what, *_sides(each)] for each in run.differences]
    rows += [[what, "recorded", "-"] for what in run.only_a]
    return [*rows, *([what, "-", "recorded"] for what in run.only_b)]


def _sides(each: RunDifference) -> list[str]:
    """Return the values of the two checkpoints as text. Fractions have six significant digits, or
    all digits if the texts would be equal.
    """
    short = [f"{v:.6g}" if isinstance(v, float) else str(v) for v in (each.a, each.b)]
    return short if short[0] != short[1] else [str(each.a), str(each.b)]


def _lettered_sentences(
    pairs: Sequence[CheckpointDiff], sentences: Callable[[CheckpointDiff], Iterable[str]]
) -> Iterator[str]:
    """Yield the sentences about each comparison. A sentence that begins with "A: " or "B: " gets
    the letter that this checkpoint has in the series."""
    for number, pair in enumerate(pairs):
        for text in sentences(pair):
            side = {"A: ": 0, "B: ": 1}.get(text[:3])
            yield text if side is None else f"{_letter(number + side)}{text[1:]}"


def _most_changed(pair: CheckpointDiff) -> list[TensorDifference]:
    """Return the tensors of each role that changed most, the largest change first, without single
    numbers such as steps."""
    counts = Counter[str]()
    most = []
    for each in pair.worst(len(pair.tensors)):
        if math.prod(each.shape) > 1 and counts[each.role] < _MOST_CHANGED:
            counts[each.role] += 1
            most.append(each)
    return most


def _figures(distance: Distance | None) -> list[float | None]:
    if distance is None:
        return [None, None, None]
    return [_finite(distance.relative), distance.cosine, distance.unchanged]


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _verdict(pairs: Sequence[CheckpointDiff]) -> str:
    (first, *others) = pairs
    if first.different_models is not None:
        return "different models"
    if others:
        equal = sum(pair.is_equal for pair in pairs)
        return f"{equal} of {len(pairs)} pairs of consecutive checkpoints are equal"
    if first.is_equal:
        return "equal"
    count = len(first.differing)
    if not count:
        return "different runs"
    return f"different: {equal_weights(first) or f'{count} of {len(first.tensors)} tensors'}"


def _is_training(pair: CheckpointDiff) -> bool:
    """True if both checkpoints have the same tensors, of the same shapes and dtypes."""
    return not any(pair.counts[each] for each in _UNMEASURED)


def equal_weights(difference: CheckpointDiff) -> str | None:
    """Return a sentence if all weights are equal. Return None if a weight differs, or anything else
    except optimizer state that only one checkpoint has."""
    weights = [each for each in difference.tensors if each.role in _WEIGHTS]
    state = [each for each in difference.differing if each.role not in _WEIGHTS]
    casts = [each for each in weights if each.status == CAST]
    only = (ONLY_A, ONLY_B)
    if not weights or any(each.status not in (EQUAL, CAST) for each in weights):
        return None
    if any(each.status not in only or each.role == LOOSE for each in state):
        return None
    types = {each.dtype for pair in casts for each in (pair.a, pair.b) if each is not None}
    types = {each for each in types if each.bits == min(t.bits for t in types)}
    names = {dtype: word for word, dtype in PRECISIONS.items()}
    to = f" to {names.get(next(iter(types)), next(iter(types)).name)}" if len(types) == 1 else ""
    count = len({each.name for each in weights})
    how = f" after the cast{to}" if casts else ""
    said = f"the {count} weights are equal{how}" if count > 1 else f"the weight is equal{how}"
    return f"{said}; they differ only in optimizer state that one of them lacks" if state else said


def _label(number: int, pair: CheckpointDiff) -> str:
    steps = [pair.a.step, pair.b.step]
    if None in steps:
        return f"{_letter(number)}-{_letter(number + 1)}"
    return f"{steps[0]}-{steps[1]}"


def _letter(number: int) -> str:
    """Return the label of a checkpoint in a series: a letter for the first 26, then a number."""
    return chr(ord("A") + number) if number < 26 else str(number + 1)


def _described(origin: Origin) -> str:
    step = "" if origin.step is None else f", step {origin.step}"
    return f"{origin.path} ({origin.title or origin.format}{step})"


def _problems(pair: CheckpointDiff) -> list[str]:
    unread = [each.message for each in pair.tensors if each.message is not None]
    models = [] if pair.different_models is None else [pair.different_models]
    return [*pair.problems, *models, *unread]


def _named(pair: CheckpointDiff, *statuses: str) -> list[Any]:
    found = in_order_of_numbers([each for each in pair.tensors if each.status in statuses])
    return [len(found), [_words(each) for each in found[:_MOST_NAMED]]]


def _words(each: TensorDifference) -> str:
    sides = [side for side in (each.a, each.b) if side is not None]
    shapes = " and ".join(f"{side.dtype} {list(side.shape)}" for side in sides)
    return f"{each.name} ({each.role}): {shapes}"
