"""Select the checkpoints of a run to thin: older checkpoints, according to their number and age."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from zerotools.core.errors import BadFile, BadRequest, ZerotoolsError
from zerotools.formats import FORMATS, FormatTable, detect
from zerotools.formats.detect import UNFINISHED
from zerotools.io.files.directory_entries import names_in
from zerotools.io.files.regular_files import read_regular
from zerotools.runs.job_checkpoint_file_names import RECORD

_NUMBERED = re.compile(r"(?P<stem>.*?)(?P<number>\d{1,18})")
_BEST = "best"
_HINTS = ("latest", "latest_universal", _BEST)
_LARGEST_HINT = 4096


@dataclass(frozen=True, slots=True)
class DatedCheckpoint:
    """A checkpoint of a run.

    Attributes:
        number: the number at the end of its name, usually its step; None if the rest of its name
            differs from that of most checkpoints.
        written: the time of its newest file, in seconds since 1970.
    """

    path: Path
    number: int | None
    written: float


@dataclass(frozen=True, slots=True)
class Selected:
    """The checkpoints to thin, the oldest first, and the others, each with the reason to
    keep it."""

    chosen: tuple[DatedCheckpoint, ...]
    stays: tuple[tuple[Path, str], ...]


def checkpoints_in(path: Path, table: FormatTable = FORMATS) -> list[DatedCheckpoint]:
    """Return the checkpoints in the directory `path`, oldest first: those without a number, sorted
    by time, then the others, sorted by number.

    Raises:
        BadRequest: the directory cannot be listed.
    """
    if not path.is_dir() or (path / RECORD).is_file():
        return []
    names = [name for name in sorted(names_in(path)) if _is_checkpoint(path / name, table)]
    stems = Counter(match["stem"] for name in names if (match := _NUMBERED.fullmatch(name)))
    usual = stems.most_common(1)[0][0] if stems else None
    found = [
        DatedCheckpoint(path / name, _number(name, usual), _written(path / name)) for name in names
    ]
    return sorted(found, key=lambda each: (each.number is not None, each.number or 0, each.written))


def select_for_thinning(
    path: Path,
    *,
    keep_last: int | None,
    keep_every: int | None,
    older_than: float | None,
    now: float,
    table: FormatTable = FORMATS,
) -> Selected:
    """Return the checkpoints in `path` to thin, and the checkpoints that stay unchanged.

    These stay: the newest `keep_last` (None: only the newest), those with a number that is a
    multiple of `keep_every`, those written in the last `older_than` seconds, those that `latest` or
    `best` names, and those without a number if others have one.

    Raises:
        BadRequest: `path` is not a directory of checkpoints.
        BadFile: `latest` is damaged.
    """
    found = checkpoints_in(path, table)
    if not found:
        raise BadRequest(f"{path} is not the directory of a run: it contains no checkpoints")
    last = 1 if keep_last is None else keep_last
    numbered = [each for each in found if each.number is not None]
    ordered = numbered or found
    newest = {each.path for each in ordered[len(ordered) - last :]} if last else set()
    hinted = _hinted(path)
    chosen, stays = [], []
    for each in found:
        why = None
        if each.path in newest:
            why = "it is the newest" if last == 1 else f"it is one of the newest {last}"
        elif numbered and each.number is None:
            why = (
                f"its name does not end in a step, as {numbered[-1].path.name} does; to thin it, "
                "give its path"
            )
        elif each.path.name in hinted:
            why = f"{hinted[each.path.name]} names it"
        elif keep_every and each.number is not None and each.number % keep_every == 0:
            why = f"its number is a multiple of {keep_every}"
        elif older_than is not None and now - each.written <= older_than:
            why = "it is not old enough"
        if why is None:
            chosen.append(each)
        else:
            stays.append((each.path, why))
    return Selected(tuple(chosen), tuple(stays))


def _is_checkpoint(path: Path, table: FormatTable) -> bool:
    if path.is_symlink() or not path.is_dir() or UNFINISHED.fullmatch(path.name):
        return False
    try:
        return detect(path, table=table).path == path
    except (ZerotoolsError, OSError):
        return False


def _number(name: str, stem: str | None) -> int | None:
    match = _NUMBERED.fullmatch(name)
    return int(match["number"]) if match and match["stem"] == stem else None


def _written(path: Path) -> float:
    times = (each.lstat().st_mtime for each in path.rglob("*") if each.is_file())
    return max(times, default=path.lstat().st_mtime)


def _hinted(path: Path) -> dict[str, str]:
    """Return the checkpoint names in files such as `latest`, each with the name of that file."""
    found = {}
    for name in _HINTS:
        try:
            found[read_regular(path / name, _LARGEST_HINT, is_source=False).decode().strip()] = name
        except UnicodeDecodeError:
            if name != _BEST:
                raise BadFile(
                    f"{path / name} is not text; write a checkpoint's name into it"
                ) from None
        except BadFile:
            if name != _BEST:  # which may as well be a checkpoint, or a file of the user's
                raise
        except OSError:
            continue
    return found


def paths_of(selected: Iterable[DatedCheckpoint]) -> list[Path]:
    """Return the path of each checkpoint."""
    return [each.path for each in selected]
