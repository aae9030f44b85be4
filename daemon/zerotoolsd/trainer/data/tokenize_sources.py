"""Tokenises the files of a job, each source once.

The first rank of each node does this while the model loads.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from zerotools.core.counts_and_sizes import count_text
from zerotools.core.errors import BadFile
from zerotools.jobs.datafiles.examples_and_documents import has_documents
from zerotools.jobs.datafiles.token_files import TokenArray, read_token_header
from zerotools.jobs.jobfile_tables.data import BYTES, kind_of, patterns_of, tokenizer_of
from zerotools.jobs.jobfile_tables.spec import JobSpec
from zerotools.jobs.memory_estimates.tokenizer_processes import count_for, memory_limit_of
from zerotoolsd.trainer.data.encode_examples import (
    ModelInput,
    ReadingProgress,
    ReadingStats,
    prepare_examples,
)
from zerotoolsd.trainer.data.example_store import BYTE_TYPE, ID_TYPE, vocabulary_in
from zerotoolsd.trainer.data.token_cache import (
    FORM,
    Build,
    CacheEntry,
    TokenCache,
    cached_digest,
    tokenising_fingerprint,
)
from zerotoolsd.trainer.data.token_stream import (
    BYTES_VOCABULARY,
    find_files,
    largest_id,
    measured_sizes,
    read_pieces,
    write_bytes,
)
from zerotoolsd.trainer.data.tokenize_text import load_tokenizer, missing_end, tokenize

IDS = "ids.u32"
DIGEST_LETTERS = 16
"""Number of characters of a file's SHA-256 in the record of a checkpoint."""
_OF_SOURCES = (
    *("text", "tokens", "examples", "preferences"),
    *("tokenizer", "mixture", "packing", "token_type"),
)
"""Keys of `[data]` that do not change any token, or that act only through the content of the
files.
"""
_OF_TEXT = ("documents", "text_column")


@dataclass(frozen=True)
class Source:
    """The files of one source, which the job key `key` names.

    `patterns` are all patterns of this key. In a mixture, each pattern is a separate source.
    """

    key: str
    patterns: tuple[str, ...]


@dataclass(frozen=True)
class ReadSource:
    """The data of a source after it was read. Every rank opens this data.

    There are three kinds of data: a file of `ids`; text files with bytes as tokens (`paths`, with
    their `sizes` in bytes); or token `arrays`.

    Attributes:
        contents: the digest and the name of each file.
        notes: lines for the log.
        entry: the name of the cache entry with the ids; None if they are not in the cache.
    """

    key: str
    files: int
    vocabulary: int
    tokens: int = 0
    longest: int = 0
    ids: Path | None = None
    typecode: str = ID_TYPE
    paths: tuple[Path, ...] = ()
    sizes: tuple[int, ...] = ()
    arrays: tuple[TokenArray, ...] = ()
    contents: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    entry: str | None = None


def sources_of(spec: JobSpec) -> list[Source]:
    """Return the training sources of a job, then the source of its evaluation files if it names
    any.

    A mixture has one training source for each weight.
    """
    patterns, key = patterns_of(spec.data), f"data.{kind_of(spec.data)}"
    groups = [(pattern,) for pattern in patterns] if spec.data.mixture else [patterns]
    evaluated = [Source("eval.files", spec.eval.files)] if spec.eval.files else []
    return [*(Source(key, group) for group in groups), *evaluated]


def tokenizer_for(spec: JobSpec) -> Any:
    """Return the tokenizer for the data of `spec`; None if the data needs none.

    Raises:
        BadRequest: the tokenizer cannot be loaded.
    """
    named = tokenizer_of(spec.data, spec.model.path)
    if named is None or named == BYTES or kind_of(spec.data) == "tokens":
        return None
    return load_tokenizer(Path(named))


@dataclass(frozen=True)
class SourceReader:
    """Reads the sources of a job with its `tokenizer`.

    The files that it writes are in the job's run directory or in the `cache`. They exist until
    `until_opened` is closed.
    """

    spec: JobSpec
    run_dir: Path
    reader: ModelInput
    cache: TokenCache | None
    tokenizer: Any = None
    until_opened: ExitStack = field(default_factory=ExitStack)
    progress: ReadingProgress = field(default_factory=ReadingProgress)

    def read(self, source: Source) -> ReadSource:
        """Read the files of `source`, tokenise them if necessary, and return the data.

        Raises:
            ZerotoolsError: no file matches a pattern, a file does not have the expected type, or
                the tokenizer does not load.
        """
        paths = find_files(source.patterns, source.key)
        readers = {"tokens": self._arrays, "text": self._text}
        lost = len(self.progress.lost)
        found = readers.get(kind_of(self.spec.data), self._examples)(source, paths)
        notes = (*found.notes, *map(_lost_note, self.progress.lost[lost:]))
        return replace(found, notes=notes, contents=tuple(map(self._content, paths)))

    def _processes(self, paths: Sequence[Path]) -> int:
        nbytes = sum(path.stat().st_size for path in paths)
        return count_for(nbytes, memory_limit_of(self.spec))

    def _content(self, path: Path) -> str:
        try:
            return f"{cached_digest(path, self._stamps)[:DIGEST_LETTERS]} {path.name}"
        except OSError as error:
            raise BadFile(f"{path} cannot be read: {error.strerror}") from None

    def _others(self, nbytes: int) -> None:
        self.progress.others = nbytes

    @property
    def _stamps(self) -> Path:
        """The directory that caches the digests of data files."""
        return (self.run_dir if self.cache is None else self.cache.directory) / "stamps"

    def _arrays(self, source: Source, paths: list[Path]) -> ReadSource:
        arrays = tuple(read_token_header(path, self.spec.data.token_type) for path in paths)
        return ReadSource(source.key, len(paths), largest_id(arrays) + 1, arrays=arrays)

    def _text(self, source: Source, paths: list[Path]) -> ReadSource:
        data = self.spec.data
        named = tokenizer_of(data, self.spec.model.path)
        if named is None or named == BYTES:
            if not any(has_documents(path, data) for path in paths):
                sizes = tuple(measured_sizes(paths))
                read = ReadSource(source.key, len(paths), BYTES_VOCABULARY)
                return replace(read, paths=tuple(paths), sizes=sizes)

            def build(directory: Path) -> dict[str, Any]:
                write_bytes(paths, data, directory / IDS)
                return {"vocabulary": BYTES_VOCABULARY}
        else:

            def build(directory: Path) -> dict[str, Any]:
                pieces = (
                    piece
                    for path in self.progress.through(paths)
                    for piece in read_pieces(path, data, self.progress.seen)
                )
                tokenize(
                    *(pieces, self.tokenizer, directory / IDS),
                    processes=self._processes(paths),
                    ended=self.progress.lost.append,
                )
                return {"vocabulary": vocabulary_in(directory / IDS)}

        settings = {name: getattr(data, name) for name in _OF_TEXT}
        is_bytes = named is None or named == BYTES
        made = self._made(source, paths, None if is_bytes else named, settings, build)
        return ReadSource(
            source.key,
            len(paths),
            made.facts["vocabulary"],
            ids=made.path / IDS,
            typecode=BYTE_TYPE if is_bytes else ID_TYPE,
            notes=(*_cache_notes(source, made), *missing_end(self.tokenizer, source.key)),
        )

    def _examples(self, source: Source, paths: list[Path]) -> ReadSource:
        data = self.spec.data
        named = tokenizer_of(data, self.spec.model.path) or ""

        def build(directory: Path) -> dict[str, Any]:
            found = prepare_examples(
                paths,
                self.tokenizer,
                data,
                self.reader,
                directory / IDS,
                progress=self.progress,
                processes=self._processes(paths),
            )
            return {"vocabulary": vocabulary_in(directory / IDS), "stats": asdict(found)}

        settings = {
            **{name: value for name, value in asdict(data).items() if name not in _OF_SOURCES},
            **asdict(self.reader),
        }
        made = self._made(source, paths, named, settings, build)
        stats = ReadingStats(**made.facts["stats"])
        return ReadSource(
            source.key,
            len(paths),
            made.facts["vocabulary"],
            stats.tokens,
            stats.longest,
            made.path / IDS,
            notes=(*_cache_notes(source, made), *self._source_notes(source, stats)),
            entry=None if made.kept is None else made.kept.name,
        )

    def derived_files(self, source: ReadSource, settings: Any, build: Build) -> Path:
        """Return a directory with the files that `build` makes from the ids of `source`.

        These files depend only on the ids and `settings`. The directory is in the cache if the ids
        are in the cache.
        """
        if self.cache is not None and source.entry is not None:
            tree = json.dumps([FORM, source.entry, settings])
            key = hashlib.sha256(tree.encode()).hexdigest()
            with suppress(OSError):  # it cannot be written
                return self.cache.entry(key, build, self.until_opened).path
        return self._alone(build).path

    def _alone(self, build: Build, note: str | None = None) -> CacheEntry:
        """Call `build` in the run directory of this attempt, without the cache, and return the
        files.
        """
        directory = Path(tempfile.mkdtemp(prefix="tokens-", dir=self.run_dir))
        self.until_opened.callback(shutil.rmtree, directory, ignore_errors=True)
        return CacheEntry(directory, build(directory), note=note, is_new=True)

    def _source_notes(self, source: Source, stats: ReadingStats) -> tuple[str, ...]:
        what, count = "example", stats.count
        if self.spec.data.preferences:
            what, count = "pair", stats.count // 2
        note = f"{source.key}: {count_text(count, what)} of {stats.tokens} tokens"
        if stats.empty:
            note += f"; {stats.empty} more without a prompt or a response are left out"
        losses = stats.losses(self.spec.data, self.reader.positions)
        return (note, *(f"{source.key}: {lost}" for lost in losses))

    def _made(
        self,
        source: Source,
        paths: list[Path],
        tokenizer: str | None,
        settings: dict[str, Any],
        build: Build,
    ) -> CacheEntry:
        """Return the token files that `build` makes, from the cache if it has them.

        Without a cache, they are made in the run directory.
        """
        note = None
        if self.cache is not None:
            try:
                key = tokenising_fingerprint(
                    paths,
                    None if tokenizer is None else Path(tokenizer),
                    [kind_of(self.spec.data), settings],
                    self._stamps,
                )
                return self.cache.entry(key, build, self.until_opened, self._others)
            except OSError as error:
                note = (
                    f"{source.key}: tokenised data cannot be stored in {self.cache.directory}: "
                    f"{error.strerror}; it is made for this attempt only"
                )
        return self._alone(build, note)


def _lost_note(status: int) -> str:
    how = f"was killed by signal {-status}" if status < 0 else f"ended with status {status}"
    return (
        f"a process that tokenised data {how}; its rank does the work of this process. If memory "
        "is short, set limits.memory or memory.host in the job, so that fewer processes start"
    )


def _cache_notes(source: Source, made: CacheEntry) -> tuple[str, ...]:
    if made.note is not None:
        return (made.note,)
    if made.is_new:
        return ()
    return (f"{source.key}: tokenised data of an earlier job is used ({made.kept})",)
