"""From `[data]` and `[eval]` to batches: rank 0 reads the files once, the others take its word."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from zerotools.core.counts import counted
from zerotools.core.errors import BadRequest
from zerotools.jobs.datafiles.documents import has_documents
from zerotools.jobs.datafiles.token_files import TokenArray, read_token_header
from zerotools.jobs.tables.data import (
    BYTES,
    DataSpec,
    fixed_length,
    kind_of,
    longest_sequence,
    patterns_of,
    tokenizer_of,
)
from zerotools.jobs.tables.spec import JobSpec
from zerotools.runs.record import DataRecord
from zerotoolsd.trainer.data.batches import Batches
from zerotoolsd.trainer.data.corpus import (
    ByteTokens,
    Tokens,
    find_files,
    measure,
    read_pieces,
    write_bytes,
)
from zerotoolsd.trainer.data.examplestore import BYTE_TYPE, ID_TYPE, Examples, index_of
from zerotoolsd.trainer.data.packing import PackedSequences, plan_packs
from zerotoolsd.trainer.data.preparing import ModelInput, ReadingStats, prepare_examples
from zerotoolsd.trainer.data.sequences import ExamplePool, TokenWindows, hold_out
from zerotoolsd.trainer.data.tokenizing import TokenFile, load_tokenizer, tokenize
from zerotoolsd.trainer.data.tokenstream import TokenStream, largest_id
from zerotoolsd.trainer.rank.group import WorldGroup

TOKEN_FILE = "tokens.u32"
EVAL_FILE = "eval.u32"
PACKS_FILE = "packs.u64"


@dataclass(frozen=True)
class TrainingData:
    """The global order of what is trained on, and what is evaluated on, if anything is.

    Every token id is below `vocabulary`, and a sequence has `longest` tokens at most. `notes` are
    lines for people.
    """

    batches: Batches
    held_out: ExamplePool | None
    vocabulary: int
    record: DataRecord
    longest: int
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Files:
    """Some files of the job's data: the key that names them, and where their ids may be written."""

    spec: JobSpec
    group: WorldGroup
    reader: ModelInput
    key: str
    patterns: tuple[str, ...]
    ids: Path

    def found(self) -> list[Path]:
        return find_files(self.patterns, self.key)


@dataclass(frozen=True)
class _Opened:
    pool: ExamplePool
    vocabulary: int
    record: DataRecord
    longest: int
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Text:
    """`paths` are files that are read as they are, one token per byte; else the tokens were
    written."""

    count: int
    paths: list[Path]
    sizes: list[int]
    vocabulary: int


def open_data(spec: JobSpec, run_dir: Path, group: WorldGroup, config: Any) -> TrainingData:
    """The data of the job for a model of the Hugging Face `config`, the same on every rank.

    Raises:
        ZerotoolsError: no file matches, one cannot be read as what it should be, there is too
            little in it, or the tokenizer does not load; on every rank.
    """
    kind = kind_of(spec.data)
    reader = model_input_of(config)
    if reader.encoder_decoder and (kind != "examples" or spec.data.packing):
        what = "data.packing" if kind == "examples" else f"data.{kind}"
        raise BadRequest(
            f"{what}: model_type {config.model_type!r} has an encoder and a decoder; such a "
            "model trains on data.examples, without data.packing"
        )
    opener = {"text": _open_text, "tokens": _open_tokens, "examples": _open_examples}[kind]
    key, patterns = f"data.{kind}", patterns_of(spec.data)
    opened = opener(_Files(spec, group, reader, key, patterns, run_dir / TOKEN_FILE))
    train, held_out, vocabulary = opened.pool, None, opened.vocabulary
    notes: tuple[str, ...] = ()
    if spec.eval.files:
        files = _Files(spec, group, reader, "eval.files", spec.eval.files, run_dir / EVAL_FILE)
        other = opener(files)
        held_out, vocabulary = other.pool, max(vocabulary, other.vocabulary)
        notes = other.notes
    elif spec.eval.fraction:
        train, held_out = hold_out(train, spec.eval.fraction, spec.seed)
    if spec.data.packing:
        length = packed_length(spec.data, reader.positions)
        train = _packed(train, spec, length, run_dir / PACKS_FILE, group)
    _unlink(run_dir, group)
    record = replace(opened.record, sequences=len(train))
    longest = longest_sequence(spec.data, reader.positions) or opened.longest
    batches = Batches(train, seed=spec.seed)
    return TrainingData(batches, held_out, vocabulary, record, longest, opened.notes + notes)


def _unlink(run_dir: Path, group: WorldGroup) -> None:
    """Take the names from the files that rank 0 wrote: their room is free when the ranks end."""
    group.gathered(None)  # all have opened theirs
    if group.rank.leads:
        for name in (TOKEN_FILE, EVAL_FILE, PACKS_FILE):
            (run_dir / name).unlink(missing_ok=True)
            index_of(run_dir / name).unlink(missing_ok=True)


def model_input_of(config: Any) -> ModelInput:
    """How a model of the Hugging Face `config` reads."""
    return ModelInput(bool(config.is_encoder_decoder), positions_of(config))


def positions_of(config: Any) -> int | None:
    """How many positions a model of the Hugging Face `config` has; None: any number."""
    positions = getattr(config.get_text_config(), "max_position_embeddings", None)
    return positions if isinstance(positions, int) and positions > 0 else None


def _open_text(files: _Files) -> _Opened:
    directory = tokenizer_of(files.spec.data, files.spec.model.path)

    data = files.spec.data

    def survey() -> _Text:
        paths = files.found()
        if directory is None or directory == BYTES:
            if not any(has_documents(path, data) for path in paths):
                return _Text(len(paths), paths, measure(paths), ByteTokens.vocabulary)
            write_bytes(paths, data, files.ids)
            return _Text(len(paths), [], [], ByteTokens.vocabulary)
        tokenizer = load_tokenizer(Path(directory))
        pieces = (piece for path in paths for piece in read_pieces(path, data))
        tokenize(pieces, tokenizer, files.ids)
        return _Text(len(paths), [], [], len(tokenizer))

    found = files.group.decided_by_rank_zero(survey)
    tokens: Tokens
    if found.paths:
        tokens = ByteTokens(found.paths, found.sizes)
    else:
        typecode = BYTE_TYPE if directory == BYTES else ID_TYPE
        tokens = TokenFile(files.ids, found.vocabulary, typecode)
    return _windows(files, tokens, found.count)


def _open_tokens(files: _Files) -> _Opened:
    def survey() -> tuple[list[TokenArray], int]:
        arrays = [read_token_header(path, files.spec.data.token_type) for path in files.found()]
        return arrays, largest_id(arrays)

    arrays, largest = files.group.decided_by_rank_zero(survey)
    return _windows(files, TokenStream(arrays, largest + 1), len(arrays))


def _windows(files: _Files, tokens: Tokens, count: int) -> _Opened:
    length = fixed_length(files.spec.data, files.reader.positions)
    assert length is not None
    pool = TokenWindows(tokens, length, files.key)
    record = DataRecord(files=count, tokens=len(tokens))
    return _Opened(pool, tokens.vocabulary, record, length)


def _open_examples(files: _Files) -> _Opened:
    spec = files.spec

    def survey() -> tuple[int, int, ReadingStats]:
        paths = files.found()
        tokenizer = load_tokenizer(Path(tokenizer_of(spec.data, spec.model.path) or ""))
        found = prepare_examples(paths, tokenizer, spec.data, files.reader, files.ids)
        return len(paths), len(tokenizer), found

    count, vocabulary, found = files.group.decided_by_rank_zero(survey)
    pool = Examples(files.ids, encoder_decoder=files.reader.encoder_decoder)
    note = f"{files.key}: {counted(found.count, 'example')} of {found.tokens} tokens"
    if found.empty:
        note += f"; {found.empty} more without a prompt or a response are left out"
    cut = found.cut_words(spec.data, files.reader.positions)
    notes = (note, f"{files.key}: {cut}") if cut else (note,)
    record = DataRecord(files=count, tokens=found.tokens)
    return _Opened(pool, vocabulary, record, found.longest, notes)


def packed_length(data: DataSpec, positions: int | None) -> int:
    """The tokens of a packed sequence that a model of so many `positions` reads.

    Raises:
        BadRequest: neither the job nor the model says it.
    """
    length = fixed_length(data, positions)
    if length is None:
        raise BadRequest(
            "data.packing = true: data.sequence_length is missing, and the model names no number "
            "of positions to take in its place; set it"
        )
    return length


def _packed(
    pool: ExamplePool, spec: JobSpec, length: int, path: Path, group: WorldGroup
) -> ExamplePool:
    group.decided_by_rank_zero(lambda: plan_packs(pool, length, spec.seed, path))
    return PackedSequences(pool, path, spec.seed)
