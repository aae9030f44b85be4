"""The values that the page of a verification shows, as JSON for `checkpoint.js` in `ops.picture`.

The page shows the checkpoint as the page of `inspect` does, and also the state of every file, of
its bytes, and of every tensor.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from zerotools.core.checkpoint import Tensor
from zerotools.ops.inspection.inspect import Inspection
from zerotools.ops.picture.checkpoint_page_data import (
    FEWEST_CELLS,
    MOST_PROBLEMS,
    UNCLAIMED,
    head_problems,
    picture_contents,
    run_lengths,
)
from zerotools.ops.verification.verification_result import Check, Soundness, Verification

WHOLE, UNKNOWN, DAMAGED = 0, 1, 2
"""The states of a file, of a cell of its strip, and of a tensor."""
_MOST_REASONS = 3

Span = tuple[int, int]


def verification_contents(found: Verification, inspection: Inspection) -> dict[str, Any]:
    """Return the values of the page of a verification. `inspection` describes the same checkpoint.

    The keys are those of `picture_contents`, and `checks`:

        files: a list of `[state, reasons, strip]`, one for each file. `strip` repeats a number of
            cells and their state; it is None if the file does not exist.
        tensors: the state of each tensor.
    """
    contents = picture_contents(inspection)
    checkpoint = found.checkpoint
    below = checkpoint.root.relative_to(found.files.base)
    files = [[(below / name).as_posix(), *row] for name, *row in contents["files"]]
    known = {name for name, *_ in files}
    files += [
        [name, size, [FEWEST_CELLS, UNCLAIMED], False]
        for name, size in found.files.names.items()
        if name not in known
    ]
    names = [name for name, *_ in files]
    faults = _faults(found, names, below.as_posix())
    reasons, spans, broken = faults.reasons, faults.spans, faults.broken
    proved = {
        name: UNKNOWN
        if found.is_fast
        or name in found.unchecked
        or name in faults.changed
        or not found.portion.has_file(name)
        else WHOLE
        for name in names
    }
    places = {key: _places(tensor, below.as_posix()) for key, tensor in checkpoint.tensors.items()}
    located = {key.name for key in places if _overlap(places[key], spans)}
    faulty = {each.tensor for each in found.findings if each.tensor is not None}
    names_faulty = {key.name for key in faulty} - located
    incomplete = {key.name for key in inspection.incomplete}
    damaged = {*inspection.incomplete, *(key for each in found.findings for key in each.changed)}
    damaged |= faulty
    unchanged = {key for each in found.findings for key in each.unchanged}
    tensors = []
    torn, sound = defaultdict[str, list[Span]](list), defaultdict[str, list[Span]](list)
    for key, parts_by_name in places.items():
        parts_by_file = None
        if key.name in names_faulty or key in damaged:
            state = DAMAGED
            # Where the damage is located, or a part is missing, the other bytes are as proved.
            if key.name not in located and key.name not in incomplete:
                parts_by_file = torn
        elif key in unchanged:
            state, parts_by_file = WHOLE, sound
        else:
            state = _state(parts_by_name, proved, spans, broken)
        tensors.append(state)
        if parts_by_file is not None:
            for name, parts in parts_by_name.items():
                parts_by_file[name] += parts
    for name, parts in torn.items():
        spans.setdefault(name, []).extend(parts)
    return {
        **contents,
        "verdict": _verdict(found),
        "is_whole": found.verdict is Soundness.WHOLE,
        "doubt": None if found.verdict is Soundness.FAULTY else contents["doubt"],
        "is_unknown": found.verdict is Soundness.UNCHECKED,
        **head_problems(found.findings),
        "notes": [
            *contents["notes"],
            *(f"{name}: {why}" for name, why in found.unchecked.items()),
        ][:MOST_PROBLEMS],
        "files": files,
        "checks": {
            "files": [
                [
                    DAMAGED if name in reasons else proved[name],
                    "; ".join(reasons.get(name, [_doubt(found, name)])[:_MOST_REASONS]),
                    None
                    if row is None
                    else _strip(
                        row,
                        size,
                        DAMAGED if name in broken else proved[name],
                        whole=sound.get(name, []),
                        damaged=spans.get(name, []),
                    ),
                ]
                for name, size, row, _ in files
            ],
            "tensors": tensors,
        },
    }


def _verdict(found: Verification) -> str:
    """Return the conclusion of the verification, with an explanation if not every byte was
    checked."""
    conclusion = found.verdict.conclusion
    if found.verdict is not Soundness.UNCHECKED:
        return conclusion
    if found.is_fast:
        return f"{conclusion}: no problem in the structure; bytes were not checked (--fast)"
    return f"{conclusion}: no problem found, but not everything can be checked"


@dataclass(frozen=True)
class _Faults:
    """The faults of files, keyed by their names on the page.

    Attributes:
        reasons: the messages about each file.
        spans: the damaged byte ranges of each file.
        broken: the files without `spans` that count as damaged completely.
        changed: the files without `spans` that have another digest than in a manifest or record.
            Some of their bytes are damaged.
    """

    reasons: dict[str, list[str]]
    spans: dict[str, list[Span]]
    broken: set[str]
    changed: set[str]


def _faults(found: Verification, names: Sequence[str], below: str) -> _Faults:
    """Return the faults of the files `names`.

    On the page, the names of a checkpoint's files begin with its directory `below`. A finding may
    name a file with or without this directory.
    """
    faults = _Faults({}, {}, set(), set())
    known = set(names)
    for each in found.findings:
        if each.file is None:
            continue
        name = each.file if each.file in known else f"{below}/{each.file}"
        faults.reasons.setdefault(name, []).append(each.message)
        if each.span is not None:
            faults.spans.setdefault(name, []).append(each.span)
        elif each.check is Check.MANIFEST:
            faults.changed.add(name)
        else:
            faults.broken.add(name)
    # The checksums of a file's records say more than the digest of the whole file.
    faults.broken.difference_update(faults.spans)
    faults.changed.difference_update(faults.spans)
    return faults


def _places(tensor: Tensor, below: str) -> dict[str, list[Span]]:
    """Return the byte ranges of a tensor in each file, with the names on the page."""
    found = defaultdict[str, list[Span]](list)
    prefix = "" if below == "." else f"{below}/"
    for chunk in tensor.chunks:
        end = chunk.offset + chunk.extent(tensor.dtype)
        found[f"{prefix}{chunk.file}"].append((chunk.offset, end))
    return found


def _overlap(places: Mapping[str, Sequence[Span]], spans: Mapping[str, Sequence[Span]]) -> bool:
    """Return whether bytes of `places` are in `spans`. Both have the byte ranges of each file."""
    return any(
        begin < until and first < end
        for name, parts in places.items()
        for first, until in spans.get(name, ())
        for begin, end in parts
    )


def _state(
    places: Mapping[str, Sequence[Span]],
    proved: Mapping[str, int],
    spans: Mapping[str, Sequence[Span]],
    broken: set[str],
) -> int:
    """Return the state of a tensor that no finding names: damaged if its bytes overlap a damaged
    part of a file, else the worst state of the files that hold the tensor.
    """
    if not broken.isdisjoint(places) or _overlap(places, spans):
        return DAMAGED
    return max((proved.get(name, UNKNOWN) for name in places), default=WHOLE)


def _strip(
    row: Sequence[int],
    size: int,
    state: int,
    *,
    whole: Iterable[Span],
    damaged: Iterable[Span],
) -> list[int]:
    """Return the strip for a file of `size` bytes, with as many cells as `row`. A cell is DAMAGED
    if it overlaps a byte range in `damaged`, else WHOLE if it overlaps one in `whole`, else
    `state`."""
    cells = sum(row[::2])
    found = [state] * cells
    width = max(1, size) / cells
    for spans, shown in ((whole, WHOLE), (damaged, DAMAGED)):
        for begin, end in spans:
            first, last = int(begin / width), min(cells, int(max(begin, end - 1) / width) + 1)
            found[first:last] = [shown] * max(0, last - first)
    return run_lengths(found)


def _doubt(found: Verification, name: str) -> str:
    """Return why a file without faults was not checked completely; "" if it was."""
    if found.is_fast:
        return "its data was not read (--fast)"
    if not found.portion.has_file(name):
        return "another part reads it"
    return found.unchecked.get(name, "")
