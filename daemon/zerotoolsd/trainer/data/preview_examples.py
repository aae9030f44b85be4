"""Reads the first examples of a job, for a preview before the job is queued.

The examples are encoded as the ranks will encode them. `SampleView` collects the examples and their
text. `with_epoch` adds an estimate of the number of tokens and steps in an epoch.
"""

from __future__ import annotations

import itertools
import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from zerotools.core.errors import BadRequest
from zerotools.jobs.datafiles.examples_and_documents import (
    has_documents,
    read_documents,
    read_records_of,
)
from zerotools.jobs.datafiles.record_files import COLUMNAR
from zerotools.jobs.jobfile_tables.data import (
    BYTES,
    ENCODED,
    DataSpec,
    fixed_length,
    kind_of,
    patterns_of,
    tokenizer_of,
)
from zerotools.jobs.jobfile_tables.spec import JobSpec
from zerotoolsd.trainer.data.encode_examples import (
    ModelInput,
    ReadingStats,
    check_stats,
    encode_records,
)
from zerotoolsd.trainer.data.encoding.encoded_example import (
    LEARNED,
    Encoded,
    Marked,
    mark_learned,
    without_marks,
)
from zerotoolsd.trainer.data.token_stream import Piece, find_files, read_pieces
from zerotoolsd.trainer.data.tokenize_sources import tokenizer_for
from zerotoolsd.trainer.data.tokenize_text import load_tokenizer, make_piece_encoder, missing_end
from zerotoolsd.trainer.data.training_data import packed_length

MAX_FILES = 8
MAX_EXAMPLES, MAX_EXAMPLES_SHOWN = 100, 2000
MAX_BYTES = 1 << 20
CheckFit = Callable[[int], None]


@dataclass(frozen=True)
class DataSample:
    """The result of `sample_data`: notes on the first examples, and the preview, as JSON values.

    `view` is None if no preview was requested. Its keys are those of `SampleView.answer`.
    """

    notes: list[str]
    view: Mapping[str, Any] | None = None


def sample_data(
    spec: JobSpec, reader: ModelInput, check_fit: CheckFit, show: int = 0
) -> DataSample:
    """Read the first examples of the first files of the job `spec`, and return notes and a preview.

    The preview has at most `show` examples. `check_fit` is called for each example with its largest
    id plus one, and raises an error if the model has too few embeddings.

    Raises:
        ZerotoolsError: the ranks would refuse an example or a Parquet file of documents; or an
            error of `check_fit`.
    """
    kind = kind_of(spec.data)
    if spec.data.packing:
        packed_length(spec.data, reader.positions)
    named = ((f"data.{kind}", patterns_of(spec.data)), ("eval.files", spec.eval.files))
    # A pattern with ** may walk a whole disk: the ranks find out.
    shallow = [(key, [each for each in patterns if "**" not in each]) for key, patterns in named]
    found = {key: _found(patterns, key) for key, patterns in shallow}
    if kind == "text":
        _check_documents(spec, itertools.chain.from_iterable(found.values()))
        said = [*missing_end(tokenizer_for(spec), "data.text")]
        if not show:
            return DataSample(said)
        preview = sample_text(spec, found["data.text"], _all(named[0]), reader.positions, show)
        return DataSample(said, preview)
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
        """The largest number of examples that are checked in a file."""
        return MAX_EXAMPLES if self.view is None else MAX_EXAMPLES_SHOWN


def _found(patterns: Sequence[str], key: str) -> list[Path]:
    try:
        return find_files(patterns, key)[:MAX_FILES]
    except BadRequest:  # the daemon checks for files, and reports it
        return []


def _all(named: tuple[str, Sequence[str]]) -> Sequence[Path] | None:
    """Find all files of a job key; return None if none exist, or if the search may take long.

    `named` is (the job key, its patterns of file names).
    """
    key, patterns = named
    if any("**" in each for each in patterns):
        return None
    try:
        return find_files(patterns, key)
    except BadRequest:
        return None


def _as_answer(example: Encoded, stats: ReadingStats) -> Encoded:
    """Return `example`, one answer of a preference pair, with "chosen" or "rejected" added to its
    `place`.

    Chosen and rejected answers alternate. So the number of examples in `stats` tells which one this
    is.
    """
    which = "chosen" if stats.count % 2 else "rejected"
    return replace(example, place=f"{example.place}, {which}")


def _check_documents(spec: JobSpec, paths: Iterable[Path]) -> None:
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
        for example in encode_records(first, sampling.tokenizer, spec.data, reader, stats):
            sampling.check_fit(1 + int(without_marks(example.marked).max(initial=0)))
            if sampling.view is not None:
                sampling.view.add(_as_answer(example, stats) if spec.data.preferences else example)
    # The first line of a file may be longer than the checked part.
    is_seen = len(paths) < MAX_FILES and all(path.suffix.lower() in COLUMNAR for path in paths)
    if paths and is_seen and not stats.count and not stats.empty:
        check_stats(stats, paths, spec.data, reader.positions)
    for lost in stats.losses(spec.data, reader.positions):
        yield f"{key}, first examples: {lost}"


MOST_BYTES = 40_000
"""Largest size in bytes of the texts and places of all shown examples, as JSON.

The daemon reads at most 64 KiB of output, which include the notes.
"""
MOST_OF_PLACE = 4
"""The place of an example gets at most one quarter of the bytes for this example."""
BINS = 8
Decode = Callable[[list[int]], str]


@dataclass
class SampleView:
    """Counts the examples of a preview, and keeps the text of the first `most` of them.

    A part of the text is "trained" if the model learns its tokens. `decode` converts ids to text.
    """

    most: int
    decode: Decode
    _shown: list[dict[str, Any]] = field(default_factory=list)
    _lengths: list[int] = field(default_factory=list)
    _trained: int = 0
    _seen: Counter[int] = field(default_factory=Counter)

    @property
    def lengths(self) -> Sequence[int]:
        """The number of tokens of each example that was added."""
        return self._lengths

    def add(self, example: Encoded) -> None:
        """Count `example`, and keep its text if fewer than `most` texts are kept."""
        trained = int(np.count_nonzero(example.marked >= LEARNED))
        self._lengths.append(len(example.marked))
        self._trained += trained
        self._seen[hash(example.marked.tobytes())] += 1
        if len(self._shown) < self.most:
            left = MOST_BYTES // self.most
            place = _within(example.place, left // MOST_OF_PLACE)
            parts, cut = self._parts(example.marked, left - json_bytes(place))
            self._shown.append(
                {
                    "place": place,
                    "parts": parts,
                    "text_cut": cut,
                    "tokens": len(example.marked),
                    "trained_tokens": trained,
                    "tokens_lost": example.source_lost + example.target_lost,
                }
            )

    def _parts(self, marked: Marked, left: int) -> tuple[list[dict[str, Any]], bool]:
        """Return (the text of an example in parts, whether the text was cut).

        Each part is a dict of its text and whether it is trained. As JSON, all parts have at most
        `left` bytes.
        """
        parts: list[dict[str, Any]] = []
        turns = np.flatnonzero(np.diff(marked >= LEARNED)) + 1
        for ids in np.split(marked, turns) if len(marked) else ():
            text = self.decode(without_marks(ids).tolist())
            part = {"text": "", "trained": bool(ids[0] >= LEARNED)}
            shown = _within(text, left - json_bytes(part))
            if shown:
                parts.append({**part, "text": shown})
                left -= json_bytes([parts[-1]])
            if len(shown) < len(text):
                return parts, True
        return parts, False

    def answer(self, empty: int) -> dict[str, Any]:
        """Return the preview as JSON values.

        `empty` is the number of examples without prompt or response.
        """
        return {
            "examples": self._shown,
            "looked_at": len(self._lengths),
            "empty": empty,
            "duplicates": sum(count - 1 for count in self._seen.values()),
            "tokens": sum(self._lengths),
            "trained_tokens": self._trained,
            "lengths": list(self._bins()),
            "packed": None,
            "epoch": None,
            "memory": None,
        }

    def _bins(self) -> Iterator[list[int]]:
        """Yield a histogram of the lengths of the examples: [shortest length, longest length,
        number of examples].

        All bins have the same width.
        """
        if not self._lengths:
            return
        least, most = min(self._lengths), max(self._lengths)
        width = max(1, -(-(most - least + 1) // BINS))
        counts = Counter((length - least) // width for length in self._lengths)
        for number in range((most - least) // width + 1):
            begin = least + number * width
            yield [begin, min(most, begin + width - 1), counts[number]]


def json_bytes(value: object) -> int:
    """Return the size of `value` in bytes, as the JSON that `preflight_model_and_data` prints."""
    return len(json.dumps(value, ensure_ascii=False).encode("utf-8", "surrogatepass"))


def _within(text: str, most: int) -> str:
    """Return the beginning of `text`, cut so that it has at most `most` bytes as JSON."""
    text = text[: max(0, most)]
    while (over := json_bytes(text) - most) > 0 and text:
        # Each character takes at most six bytes: of a control character, in JSON.
        text = text[: -max(1, over // 6)]
    return text


@dataclass
class BytesRead:
    """Counts the bytes that were read from each file."""

    _files: dict[Path, int] = field(default_factory=dict)

    def of(self, path: Path) -> Callable[[int], None]:
        """Return a function that records the number of bytes read from `path`."""

        def seen(nbytes: int) -> None:
            self._files[path] = nbytes

        return seen

    def share(self, paths: Sequence[Path] | None) -> float | None:
        """Return which fraction of the bytes of `paths` was read, from 0 to 1.

        Returns None if this is unknown, for example because the files are not JSON.
        """
        read = sum(self._files.values())
        if not paths or not read:
            return None
        total = sum(path.stat().st_size for path in paths)
        return min(1.0, read / total) if total else None


def with_epoch(
    view: SampleView,
    empty: int,
    spec: JobSpec,
    packed_length: int | None,
    share: float | None,
    *,
    sequences: float | None = None,
) -> Mapping[str, Any]:
    """Return the preview of `view`. Add estimates of the size of an epoch, and of how full packed
    sequences are.

    `share` is the fraction of the data, from 0 to 1, that `view` contains; None if unknown.
    `packed_length` is the length of packed sequences; None if the job does not pack. `empty` is the
    number of examples without prompt or response. `sequences` is the number of sequences of a text,
    with the part of the last one.
    """
    answer = view.answer(empty)
    count = len(view.lengths) // (2 if spec.data.preferences else 1)
    tokens = answer["tokens"] * (1 if sequences is None else sequences / count)
    whole = math.ceil if sequences is None else math.floor
    sequences = count if sequences is None else sequences
    if packed_length is not None and count:
        sequences = _packed(view.lengths, packed_length)
        answer["packed"] = {
            "sequences": sequences,
            "length": packed_length,
            "filled": answer["tokens"] / (sequences * packed_length),
        }
    if share and count:
        in_all = whole(sequences / share)
        answer["epoch"] = {
            "tokens": round(tokens / share),
            "sequences": in_all,
            "steps": math.ceil(in_all / spec.train.batch_size),
            "operations": None,
        }
    return answer


def _packed(lengths: Sequence[int], most: int) -> int:
    """Return how many packed sequences of at most `most` tokens are needed for examples of these
    `lengths`.
    """
    sequences, filled = 0, most
    for length in (each - 1 for each in lengths):  # the last token is not read
        if filled + length > most:
            sequences, filled = sequences + 1, 0
        filled += length
    return sequences


MOST_PIECES = 256
MOST_LETTERS = 1 << 20


def sample_text(
    spec: JobSpec,
    paths: Sequence[Path],
    all_paths: Sequence[Path] | None,
    positions: int | None,
    show: int,
) -> Mapping[str, Any] | None:
    """Return a preview of text files: the first `show` sequences, and an estimate of the epoch.

    The sequences are those of the first of `paths`; `all_paths` are all files of the job, None if
    unknown. Returns None if the files have too little text, or neither the job nor the model sets a
    sequence length.
    """
    length = fixed_length(spec.data, positions)
    if not paths or length is None:
        return None
    tokenized: Callable[[Sequence[Piece]], bytes]
    named = tokenizer_of(spec.data, spec.model.path)
    if named is None or named == BYTES:
        view = SampleView(show, lambda ids: bytes(ids).decode("utf-8", "replace"))
        tokenized = _as_bytes
    else:
        tokenizer = load_tokenizer(Path(named))
        view = SampleView(show, tokenizer.decode)
        tokenized = make_piece_encoder(tokenizer)
    read, ids, used = BytesRead(), np.empty(0, np.uint32), 0
    for path in paths:
        if pieces := [*_first(path, spec.data, read)]:
            ids = np.concatenate([ids, np.frombuffer(tokenized(pieces), "<u4")])
        used += 1
        if len(ids) >= length:
            break
    else:
        return None
    place = str(paths[0]) if used == 1 else f"{paths[0]} to {paths[used - 1]}"
    for number in range(len(ids) // length):
        window: Marked = ids[number * length :][:length]
        view.add(Encoded(f"{place}, sequence {number + 1}", mark_learned(window), 0))
    return with_epoch(view, 0, spec, None, read.share(all_paths), sequences=len(ids) / length)


def _as_bytes(pieces: Sequence[Piece]) -> bytes:
    text = "".join(piece.text for piece in pieces).encode()
    return np.frombuffer(text, np.uint8).astype("<u4").tobytes()


def _first(path: Path, data: DataSpec, read: BytesRead) -> Iterator[Piece]:
    letters = 0
    for piece in itertools.islice(read_pieces(path, data, read.of(path)), MOST_PIECES):
        yield piece
        letters += len(piece.text)
        if letters > MOST_LETTERS:  # the next piece is not read, so its bytes do not count
            return
