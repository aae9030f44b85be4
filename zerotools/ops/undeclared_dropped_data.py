"""Find data that an output neither holds nor lists as dropped: tensors, files, random state."""

from __future__ import annotations

from collections.abc import Container

from zerotools.core.checkpoint import Checkpoint, Key
from zerotools.core.errors import Unsupported
from zerotools.core.target import LOOSE, WEIGHTS, Dropped, Target
from zerotools.formats import FORMATS, FormatTable, format_of
from zerotools.io.output.files_without_tensors import RANDOM_STATE
from zerotools.io.output.output_marker import MARKER
from zerotools.runs.optimizer_names_record import NAMED_ORDER

RANDOM = "random state"
_MAX_NAMED = 5


def undeclared_dropped_data(
    source: Checkpoint, scalars: Container[Key], target: Target
) -> list[Dropped]:
    """Return the tensors of the source that the target neither holds nor lists as dropped.

    Tensors in `scalars` are not checked, because a target may store them as plain values.

    Raises:
        Unsupported: a weight would be lost.
    """
    held = {_as_weight(key) for key in (*target.checkpoint.tensors, *target.carried)}
    said = {dropped.what for dropped in target.dropped}
    said |= {LOOSE} if "client" in said else set()
    lost: dict[str, list[str]] = {}
    for key in (key for key in source.tensors if key not in scalars):
        there = target.target_keys.get(key, (key,))
        if key.role not in said and any(_as_weight(each) not in held for each in there):
            lost.setdefault(key.role, []).append(key.name)
    for role in WEIGHTS:
        if role in lost:
            raise Unsupported(
                f"{source.origin.path}: {Key(lost[role][0], role)} cannot be stored in "
                f"{target.checkpoint.origin.format}, so it is not written"
            )
    return [
        Dropped(role, f"{names[0]} and {len(names) - 1} others cannot be stored in it")
        for role, names in lost.items()
    ]


def _as_weight(key: Key) -> Key:
    return Key(key.name, "param") if key.role == "buffer" else key


def left_behind(
    source: Checkpoint, target: Target, table: FormatTable = FORMATS
) -> tuple[list[Dropped], list[str]]:
    """Return the random number state of the ranks if the source has it and the target lacks it, and
    a list with one sentence on other files that are not copied. Both lists may be empty."""
    names = [name for name in _names(source, table) if name not in target.files]
    random = [name for name in names if RANDOM_STATE.fullmatch(name)]
    rest = [name for name in names if name not in random]
    job = format_of(source, table).job_record(source)
    per_rank = job is not None and job.random_states > 0
    why = "it belongs to the ranks that saved it"
    dropped = [Dropped(RANDOM, why)] if random or per_rank else []
    if not rest:
        return dropped, []
    more = f" and {len(rest) - _MAX_NAMED} more" if rest[_MAX_NAMED:] else ""
    some = ", ".join(rest[:_MAX_NAMED])
    return dropped, [f"files next to the checkpoint are not copied: {some}{more}"]


def _names(source: Checkpoint, table: FormatTable) -> list[str]:
    """Return the names of files next to the checkpoint that are neither part of it nor sidecars."""
    directory = format_of(source, table).run_directory(source)
    if directory is None:
        return []
    own = {MARKER, NAMED_ORDER, *source.model_sidecars}.union(
        *(form.sidecar_names for form in table.values())
    )
    if directory == source.root:
        own |= source.files.keys()
    return sorted(
        path.name
        for path in directory.iterdir()
        if path.is_file() and path.name not in own and not path.name.endswith(".index.json")
    )
