"""What is looked at of a job's data, tokenizer and model directory before the job is accepted.

Only the first lines of the first files, and only regular files: the ranks read the rest, and say
what is wrong with it in the same words.
"""

from __future__ import annotations

import glob
import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path

from zerotools.core.errors import BadFile
from zerotools.jobs.examplefiles import read_examples
from zerotools.jobs.rules_data import BYTES, kind_of, patterns_of, tokenizer_of
from zerotools.jobs.spec import JobSpec
from zerotools.jobs.tokenfiles import read_token_header

MOST_FILES = 8
MOST_EXAMPLES = 100
MOST_BYTES = 1 << 20
TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "spiece.model",
    "vocab.json",
    "vocab.txt",
)
WEIGHTS = ("model.safetensors", "model.safetensors.index.json")
_OTHER_WEIGHTS = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.msgpack", "*.h5")


def check_data(spec: JobSpec) -> Iterator[str]:
    """What is wrong with the files of `[data]` and `[eval]`."""
    kind = kind_of(spec.data)
    named = ((f"data.{kind}", patterns_of(spec.data)), ("eval.files", spec.eval.files))
    for key, patterns in named:
        missing = [pattern for pattern in patterns if not _may_match(pattern)]
        yield from (f"{key} = {pattern}: no file matches" for pattern in missing)
        if patterns and not missing:
            yield from _look_inside(spec, kind, _first_files(patterns))


def _may_match(pattern: str) -> bool:
    # A pattern with ** may walk a whole disk: the trainer finds out.
    if "**" in pattern or Path(pattern).is_file():
        return True
    # Path.glob takes no absolute pattern.
    return next(glob.iglob(pattern, recursive=True), None) is not None  # noqa: PTH207


def _first_files(patterns: Sequence[str]) -> list[Path]:
    named = itertools.chain.from_iterable(
        [pattern] if Path(pattern).is_file() else glob.iglob(pattern)  # noqa: PTH207
        for pattern in patterns
        if "**" not in pattern
    )
    return [path for path in map(Path, itertools.islice(named, MOST_FILES)) if path.is_file()]


def _look_inside(spec: JobSpec, kind: str, paths: Sequence[Path]) -> Iterator[str]:
    for path in paths:
        try:
            if kind == "text":
                _open(path)
            elif kind == "tokens":
                read_token_header(path, spec.data.token_type)
            else:
                _look_at_examples(spec, path)
        except BadFile as error:
            yield str(error)
    if paths and len(paths) < MOST_FILES and all(map(_is_empty, paths)):
        yield f"{', '.join(map(str, paths))}: there is nothing in it"


def _is_empty(path: Path) -> bool:
    try:
        return path.stat().st_size == 0
    except OSError:
        return False


def _open(path: Path) -> None:
    try:
        with path.open("rb"):
            return
    except OSError as error:
        raise BadFile(f"{path} cannot be read: {error.strerror}") from None


def _look_at_examples(spec: JobSpec, path: Path) -> None:
    records = itertools.islice(read_examples(path, spec.data, MOST_BYTES), MOST_EXAMPLES)
    for _ in records:
        pass


def check_tokenizer(spec: JobSpec) -> Iterator[str]:
    """What is wrong with the tokenizer's directory."""
    named = tokenizer_of(spec)
    if named is None or named == BYTES:
        return
    directory = Path(named)
    key = "data.tokenizer" if spec.data.tokenizer is not None else "model.path"
    if not directory.exists():
        if key == "data.tokenizer":
            yield f"{key} = {named}: there is no such file or directory"
    elif not directory.is_dir():
        yield f"{key} = {named}: a tokenizer is a directory with a tokenizer.json, this is a file"
    elif not any((directory / name).is_file() for name in TOKENIZER_FILES):
        yield (
            f"{key} = {named}: there is no tokenizer in it (no tokenizer.json, and none of the "
            "older files); name one with data.tokenizer"
        )


def check_model(spec: JobSpec) -> Iterator[str]:
    """What is wrong with the model's config or directory."""
    model = spec.model
    if isinstance(model.config, str) and not Path(model.config).is_file():
        yield f"model.config = {model.config}: there is no such file"
    if model.path is None:
        return
    directory = Path(model.path)
    if not directory.is_dir():
        yield f"model.path = {directory}: there is no such directory"
    elif not (directory / "config.json").is_file():
        yield f"model.path = {directory}: there is no config.json in it"
    elif spec.resume_from is None and not any((directory / name).is_file() for name in WEIGHTS):
        others = any(next(directory.glob(pattern), None) for pattern in _OTHER_WEIGHTS)
        what = (
            "its weights are no safetensors: convert them with zerotools convert"
            if others
            else "there are no weights in it: to start from random ones, set "
            f'model.config = "{directory / "config.json"}" in its place'
        )
        yield f"model.path = {directory}: {what}"
