"""The first examples of a job as its ranks will read them, before it is accepted."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from zerotools.core.errors import BadRequest
from zerotools.jobs.datafiles.columnar_files import COLUMNAR
from zerotools.jobs.datafiles.documents import has_documents, read_documents
from zerotools.jobs.datafiles.example_files import read_records_of
from zerotools.jobs.tables.data import ENCODED, kind_of, patterns_of, tokenizer_of
from zerotools.jobs.tables.spec import JobSpec
from zerotoolsd.trainer.data.corpus import find_files
from zerotoolsd.trainer.data.encoding.encoded import Encoded, bare
from zerotoolsd.trainer.data.epoch_estimate import BytesRead, with_epoch
from zerotoolsd.trainer.data.preparing import ModelInput, ReadingStats, check_stats, encode
from zerotoolsd.trainer.data.reading import packed_length
from zerotoolsd.trainer.data.sample_view import SampleView
from zerotoolsd.trainer.data.text_sample import sample_text
from zerotoolsd.trainer.data.tokenizing import load_tokenizer

MAX_FILES = 8
MAX_EXAMPLES, MAX_EXAMPLES_SHOWN = 100, 2000
MAX_BYTES = 1 << 20
CheckFit = Callable[[int], None]


@dataclass(frozen=True)
class DataSample:
    """Notes on the first examples, and `view`, the preview of those that are trained on: see
    `SampleView.answer`."""

    notes: list[str]
    view: Mapping[str, Any] | None = None


def sample_data(
    spec: JobSpec, reader: ModelInput, check_fit: CheckFit, show: int = 0
) -> DataSample:
    """Check the first examples of the first files: how many are cut, and `show` of them in full.

    `check_fit` is called with one more than the largest id of each.

    Raises:
        ZerotoolsError: the ranks would refuse one of them, or a Parquet file of documents; or
            `check_fit` did.
    """
    kind = kind_of(spec.data)
    if spec.data.packing:
        packed_length(spec.data, reader.positions)
    named = ((f"data.{kind}", patterns_of(spec.data)), ("eval.files", spec.eval.files))
    # A pattern with ** may walk a whole disk: the ranks find out.
    shallow = [(key, [each for each in patterns if "**" not in each]) for key, patterns in named]
    found = {key: _found(patterns, key) for key, patterns in shallow}
    if kind == "text":
        _look_at_documents(spec, itertools.chain.from_iterable(found.values()))
        if show:
            return DataSample([], sample_text(spec, found["data.text"], reader.positions, show))
    if kind not in ENCODED:
        return DataSample([])
    tokenizer = load_tokenizer(Path(tokenizer_of(spec.data, spec.model.path) or ""))
    view = SampleView(show, tokenizer.decode) if show else None
    notes: list[str] = []
    answer: Mapping[str, Any] | None = None
    for key, paths in found.items():
        stats = ReadingStats()
        seen = view if key != "eval.files" else None
        read = BytesRead()
        sampling = _Sampling(spec, tokenizer, reader, check_fit, seen, read)
        notes += _sampled(sampling, key, paths, stats)
        if seen is not None:
            length = packed_length(spec.data, reader.positions) if spec.data.packing else None
            answer = with_epoch(seen, stats.empty, spec, length, read.share(_all(named[0])))
    return DataSample(notes, answer)


@dataclass(frozen=True)
class _Sampling:
    spec: JobSpec
    tokenizer: Any
    reader: ModelInput
    check_fit: CheckFit
    view: SampleView | None
    read: BytesRead

    @property
    def most(self) -> int:
        """The number of examples of a file that are checked."""
        return MAX_EXAMPLES if self.view is None else MAX_EXAMPLES_SHOWN


def _found(patterns: Sequence[str], key: str) -> list[Path]:
    try:
        return find_files(patterns, key)[:MAX_FILES]
    except BadRequest:  # the daemon checks for files, and reports it
        return []


def _all(named: tuple[str, Sequence[str]]) -> Sequence[Path] | None:
    """Return all files of a key; None if the search may take long."""
    key, patterns = named
    if any("**" in each for each in patterns):
        return None
    try:
        return find_files(patterns, key)
    except BadRequest:
        return None


def _as_answer(example: Encoded, stats: ReadingStats) -> Encoded:
    """Return the example of a preference, named for the answer that it contains."""
    which = "chosen" if stats.count % 2 else "rejected"
    return replace(example, place=f"{example.place}, {which}")


def _look_at_documents(spec: JobSpec, paths: Iterable[Path]) -> None:
    for path in paths:  # the daemon looks at the others
        if path.suffix.lower() in COLUMNAR and has_documents(path, spec.data):
            next(read_documents(path, spec.data, MAX_BYTES), None)


def _sampled(
    sampling: _Sampling, key: str, paths: Sequence[Path], stats: ReadingStats
) -> Iterator[str]:
    spec, reader = sampling.spec, sampling.reader
    for path in paths:
        records = read_records_of(path, spec.data, MAX_BYTES, seen=sampling.read.of(path))
        first = itertools.islice(records, sampling.most)
        for example in encode(first, sampling.tokenizer, spec.data, reader, stats):
            sampling.check_fit(1 + int(bare(example.marked).max(initial=0)))
            if sampling.view is not None:
                sampling.view.add(_as_answer(example, stats) if spec.data.preferences else example)
    # The first line of a file may be longer than the checked part.
    is_seen = len(paths) < MAX_FILES and all(path.suffix.lower() in COLUMNAR for path in paths)
    if paths and is_seen and not stats.count and not stats.empty:
        check_stats(stats, paths, spec.data, reader.positions)
    for lost in stats.losses(spec.data, reader.positions):
        yield f"{key}: of the first examples, {lost}"
