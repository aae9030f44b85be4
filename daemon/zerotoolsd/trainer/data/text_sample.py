"""The first sequences of a job on text as the model gets them, for people."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from zerotools.jobs.tables.data import BYTES, DataSpec, fixed_length, tokenizer_of
from zerotools.jobs.tables.spec import JobSpec
from zerotoolsd.trainer.data.corpus import Piece, read_pieces
from zerotoolsd.trainer.data.encoding.encoded import Encoded, Marked, said
from zerotoolsd.trainer.data.epoch_estimate import BytesRead, with_epoch
from zerotoolsd.trainer.data.sample_view import SampleView
from zerotoolsd.trainer.data.tokenizing import load_tokenizer, make_tokenizing

MOST_PIECES = 256
MOST_LETTERS = 1 << 20


def sample_text(
    spec: JobSpec, paths: Sequence[Path], positions: int | None, show: int
) -> Mapping[str, Any] | None:
    """Return `show` sequences of the first text, and the estimated epoch.

    Returns None without text, or without a length of sequences.
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
        tokenized = make_tokenizing(tokenizer)
    read = BytesRead()
    pieces = [*_first(paths[0], spec.data, read)]
    ids = np.frombuffer(tokenized(pieces), "<u4") if pieces else np.empty(0, np.uint32)
    if len(ids) < length:
        return None
    for number in range(len(ids) // length):
        window: Marked = ids[number * length :][:length]
        view.add(Encoded(f"{paths[0]}, sequence {number + 1}", said(window), 0))
    return with_epoch(view, 0, spec, None, read.share(paths))


def _as_bytes(pieces: Sequence[Piece]) -> bytes:
    text = "".join(piece.text for piece in pieces).encode()
    return np.frombuffer(text, np.uint8).astype("<u4").tobytes()


def _first(path: Path, data: DataSpec, read: BytesRead) -> Iterator[Piece]:
    letters = 0
    for piece in itertools.islice(read_pieces(path, data, read.of(path)), MOST_PIECES):
        if letters > MOST_LETTERS:
            return
        letters += len(piece.text)
        yield piece
