"""The checks of a job's data before the job is accepted.

Only the first lines of the first regular files are checked. The ranks read the rest, and report
errors in the same words.
"""

from __future__ import annotations

import codecs
import glob
import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path

from zerotools.core.errors import BadFile
from zerotools.jobs.datafiles.examples_and_documents import (
    has_documents,
    read_documents,
    read_records_of,
)
from zerotools.jobs.datafiles.json_objects import not_utf8
from zerotools.jobs.datafiles.record_files import COLUMNAR, saved_files
from zerotools.jobs.datafiles.token_files import read_token_header
from zerotools.jobs.jobfile_tables.data import AUTO, COLUMNS, DataSpec, kind_of, patterns_of
from zerotools.jobs.jobfile_tables.spec import JobSpec

MAX_FILES = 8
MAX_EXAMPLES = 100
MAX_BYTES = 1 << 20


def check_data(spec: JobSpec) -> Iterator[str]:
    """Yield the errors in the files of `[data]` and `[eval]`."""
    kind = kind_of(spec.data)
    named = ((f"data.{kind}", patterns_of(spec.data)), ("eval.files", spec.eval.files))
    for key, patterns in named:
        missing = [(pattern, why) for pattern in patterns if (why := _why_none(pattern))]
        yield from (f"{key} = {pattern}: {why}" for pattern, why in missing)
        if patterns and not missing:
            yield from _check_contents(spec, kind, _first_files(patterns))


def _why_none(pattern: str) -> str | None:
    """Return the reason why `pattern` matches no regular file; None if it may match one."""
    path = Path(pattern)
    # A pattern with ** may walk a whole disk: the trainer finds out.
    if "**" in pattern or path.is_file():
        return None
    if path.is_dir():
        try:
            if saved_files(path) is not None:
                return None
        except BadFile as error:
            return str(error)
        return f"is a directory; name the files in it, such as {pattern.rstrip('/')}/*"
    if path.exists():
        return "is a pipe or a device, not a file"
    if path.is_symlink():
        return f"is a link to {path.readlink()}, which does not exist"
    # Path.glob takes no absolute pattern.
    if any(Path(name).is_file() for name in glob.iglob(pattern, recursive=True)):  # noqa: PTH207
        return None
    return "no file matches"


def _first_files(patterns: Sequence[str]) -> list[Path]:
    named = itertools.chain.from_iterable(
        [pattern] if Path(pattern).exists() else glob.iglob(pattern)  # noqa: PTH207
        for pattern in patterns
        if "**" not in pattern
    )
    files: list[Path] = []
    for path in map(Path, itertools.islice(named, MAX_FILES)):
        files += [path] if path.is_file() else saved_files(path) or []
    return files[:MAX_FILES]


def is_columnar(path: Path) -> bool:
    """Return whether only the job's interpreter can check the file, because it needs pyarrow."""
    return path.suffix.lower() in COLUMNAR


def needs_pyarrow(spec: JobSpec) -> bool:
    """Return whether one of the first files of the job needs pyarrow."""
    patterns = (*patterns_of(spec.data), *spec.eval.files)
    try:
        return any(map(is_columnar, _first_files(patterns)))
    except BadFile:  # reported by another check
        return False


def _check_contents(spec: JobSpec, kind: str, paths: Sequence[Path]) -> Iterator[str]:
    usable = not paths
    for path in paths:
        try:
            if kind != "tokens" and is_columnar(path):
                usable = True
            elif kind == "text":
                _check_text(path, spec.data)
                usable = True
            elif kind == "tokens":
                read_token_header(path, spec.data.token_type)
                usable = True
            else:
                usable |= _has_examples(spec, path)
        except BadFile as error:
            usable = True
            yield str(error)
    if len(paths) >= MAX_FILES:
        return
    if paths and all(map(_is_empty, paths)):
        yield f"{', '.join(map(str, paths))}: contains no data"
    elif not usable:
        yield (
            f"{', '.join(map(str, paths))}: contains no example with text in {_parts(spec.data)}"
        )


def _parts(data: DataSpec) -> str:
    if data.format not in (AUTO, COLUMNS):
        return "prompt and response"
    return f'"{data.prompt_column}" and "{data.response_column}"'


def _is_empty(path: Path) -> bool:
    try:
        return path.stat().st_size == 0
    except OSError:
        return False


def _check_text(path: Path, text: DataSpec) -> None:
    """Raise BadFile if the file is unreadable, begins with invalid UTF-8, or has bad records."""
    try:
        if has_documents(path, text):
            for _ in itertools.islice(read_documents(path, text, MAX_BYTES), MAX_EXAMPLES):
                pass
            return
        with path.open("rb") as file:
            data = file.read(MAX_BYTES)
    except OSError as error:
        raise BadFile(f"{path} cannot be read: {error.strerror}") from None
    try:
        codecs.getincrementaldecoder("utf-8")().decode(data)
    except UnicodeDecodeError as error:
        line = 1 + data.count(b"\n", 0, error.start)
        raise not_utf8(path, line, error, error.start) from None


def _has_examples(spec: JobSpec, path: Path) -> bool:
    """Return whether the file has a usable training example among its first lines.

    Return True also if the file is too long for this check.
    """
    records = itertools.islice(read_records_of(path, spec.data, MAX_BYTES), MAX_EXAMPLES)
    full = [not record.is_empty for record in records]
    return any(full) or len(full) == MAX_EXAMPLES or path.stat().st_size > MAX_BYTES
