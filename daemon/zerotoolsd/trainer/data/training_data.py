"""Reads `[data]` and `[eval]`. The first rank of each node reads the files once; all ranks use the
result."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from zerotools.core.counts_and_sizes import count_text
from zerotools.core.errors import BadRequest, ZerotoolsError
from zerotools.jobs.jobfile_tables.data import (
    ENCODED,
    DataSpec,
    fixed_length,
    kind_of,
    longest_sequence,
    patterns_of,
)
from zerotools.jobs.jobfile_tables.spec import JobSpec
from zerotools.runs.training_record import DataRecord
from zerotoolsd.trainer.data.batches import Batches
from zerotoolsd.trainer.data.encode_examples import ModelInput
from zerotoolsd.trainer.data.example_pools import (
    ExamplePool,
    JoinedPools,
    MixedPools,
    TokenWindows,
    hold_out,
)
from zerotoolsd.trainer.data.example_store import Examples, PreferencePairs
from zerotoolsd.trainer.data.packing import PackedSequences, plan_packs
from zerotoolsd.trainer.data.token_cache import cache_from
from zerotoolsd.trainer.data.token_stream import ByteTokens, Tokens, TokenStream
from zerotoolsd.trainer.data.tokenize_sources import (
    ReadSource,
    SourceReader,
    sources_of,
    tokenizer_for,
)
from zerotoolsd.trainer.data.tokenize_text import TokenFile
from zerotoolsd.trainer.rank.check_same_files import check_same_files
from zerotoolsd.trainer.rank.process_group import WorldGroup

PACKS_FILE = "packs.u64"
TELL_SECONDS = 5.0


@dataclass(frozen=True)
class TrainingData:
    """The training examples in the order of the run, and the evaluation examples (`held_out`), if
    any.

    Attributes:
        vocabulary: all token ids are smaller than this number.
        longest: the largest number of tokens in a sequence.
        longest_read: the largest number of tokens that the model reads from one example; None if
            unknown.
        record: describes the data for checkpoints.
        pairs: the preference pairs of each source, without their reference log-probabilities.
        notes: lines for the log.
    """

    batches: Batches
    held_out: ExamplePool | None
    vocabulary: int
    record: DataRecord
    longest: int
    longest_read: int | None = None
    pairs: tuple[PreferencePairs, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Opened:
    """The training examples of one source, and its examples that are held out for evaluation."""

    train: ExamplePool
    held_out: ExamplePool | None


@dataclass
class DataReading:
    """Reads the data of a job. All ranks call both methods.

    `start` begins to read in the background, and `opened` waits for the data.
    """

    spec: JobSpec
    run_dir: Path
    group: WorldGroup
    config: Any
    _files: SourceReader = field(init=False)
    _found: Future[list[ReadSource]] | None = field(default=None, init=False)

    def start(self) -> DataReading:
        """Start to read the data in the background, and return this object.

        Raises:
            BadRequest: the model cannot be trained on data of this kind.
        """
        reader = model_input_of(self.config)
        kind, packing = kind_of(self.spec.data), self.spec.data.packing
        if reader.encoder_decoder and (kind != "examples" or packing):
            what = "data.packing" if kind == "examples" else f"data.{kind}"
            raise BadRequest(
                f"{what}: model_type {self.config.model_type!r} has an encoder and a decoder; such "
                "a model trains on data.examples, without data.packing"
            )
        if packing:
            packed_length(self.spec.data, reader.positions)
        self._files = SourceReader(self.spec, self.run_dir, reader, cache_from(os.environ))
        if self.group.rank.leads_node:
            self._found = Future()
            self._begin(self._found)
        return self

    def _begin(self, found: Future[list[ReadSource]]) -> None:
        try:
            # Not in the thread, because two concurrent imports of parts of transformers conflict.
            self._files = replace(self._files, tokenizer=tokenizer_for(self.spec))
        except ZerotoolsError as error:
            found.set_exception(error)
            return
        # A daemon: a rank that ends for another reason does not wait for it.
        threading.Thread(target=self._read, args=(found,), daemon=True).start()

    def _read(self, found: Future[list[ReadSource]]) -> None:
        try:
            found.set_result([self._files.read(source) for source in sources_of(self.spec)])
        except BaseException as error:  # raised again by the waiting code
            found.set_exception(error)

    def _result(self, report: Callable[[str], None]) -> list[ReadSource]:
        assert self._found is not None  # of the first rank of a node, which alone asks
        found = self._found
        self._files.progress.report_until(lambda: bool(wait([found], TELL_SECONDS).done), report)
        return found.result()

    def opened(self, report: Callable[[str], None] = lambda _: None) -> TrainingData:
        """Wait for the data and return it. Every rank gets the same data, or the same error.

        `report` is called with the progress, as text, when it changes.

        Raises:
            ZerotoolsError: no file matches a pattern, a file does not have the expected type, the
                data is too small, or the tokenizer does not load.
        """
        with self._files.until_opened:
            sources = self.group.decided_by_node(partial(self._result, report))
            self._check_alike(sources)
            try:
                return self._opened(sources)
            finally:
                # Also if all refuse it: the first rank removes files that others may still open.
                self.group.gathered(None)

    def _check_alike(self, sources: Sequence[ReadSource]) -> None:
        """Check that all nodes have the same data.

        Raises:
            BadRequest: the data of two nodes differ.
        """
        if self.group.rank.nodes == 1:
            return
        everywhere = self.group.gathered(
            [(each.key, each.files, each.tokens, sum(each.sizes)) for each in sources]
        )
        for number, others in enumerate(everywhere):
            if [each[0] for each in others] != [each[0] for each in everywhere[0]]:
                raise BadRequest(
                    f"node {number // self.group.rank.node_ranks} reads different keys of [data] "
                    "and [eval] than node 0; submit the same job file on all nodes"
                )
            for ours, theirs in zip(everywhere[0], others, strict=True):
                if ours != theirs:
                    node = number // self.group.rank.node_ranks
                    raise BadRequest(
                        f"{ours[0]}: node 0 has {count_text(ours[1], 'file')} with "
                        f"{_amount(ours)}, "
                        f"but node {node} has {count_text(theirs[1], 'file')} with "
                        f"{_amount(theirs)}; give all nodes the "
                        "same data"
                    )
        files = [(each.key, path) for each in sources for path in _files_of(each)]
        named = {f"{key} ({n}: {path.name})": path for n, (key, path) in enumerate(files)}
        check_same_files(named, self.group)

    def _opened(self, sources: Sequence[ReadSource]) -> TrainingData:
        spec, reader = self.spec, self._files.reader
        trained = [source for source in sources if source.key != "eval.files"]
        pools = [self._pool(source) for source in sources]
        parts = [*map(self._part, pools, trained)]
        held_out = [part.held_out for part in parts if part.held_out is not None]
        held_out += pools[len(trained) :]
        train, mixed = _mixed([part.train for part in parts], spec)
        record = DataRecord(
            sum(source.files for source in trained),
            sum(_tokens(source, pool) for source, pool in zip(trained, pools, strict=False)),
            len(train),
            tuple(line for source in trained for line in source.contents),
        )
        return TrainingData(
            Batches(train, seed=spec.seed),
            _joined(held_out) if held_out else None,
            max(source.vocabulary for source in sources),
            record,
            longest_sequence(spec.data, reader.positions)
            or max(source.longest for source in sources),
            None if spec.data.packing else self._longest_read(sources),
            tuple(pool for pool in pools if isinstance(pool, PreferencePairs)),
            tuple(note for source in sources for note in source.notes) + mixed,
        )

    def _longest_read(self, sources: Sequence[ReadSource]) -> int | None:
        longest = max(source.longest for source in sources)  # 0 but of examples
        return longest - (0 if self._files.reader.encoder_decoder else 1) if longest else None

    def _pool(self, source: ReadSource) -> ExamplePool:
        if kind_of(self.spec.data) in ENCODED:
            assert source.ids is not None
            examples = Examples(source.ids, encoder_decoder=self._files.reader.encoder_decoder)
            return PreferencePairs(examples) if self.spec.data.preferences else examples
        length = fixed_length(self.spec.data, self._files.reader.positions)
        assert length is not None
        return TokenWindows(_tokens_of(source), length, source.key)

    def _part(self, pool: ExamplePool, source: ReadSource) -> _Opened:
        spec, held_out = self.spec, None
        if spec.eval.fraction:
            pool, held_out = hold_out(pool, spec.eval.fraction, spec.seed)
        if spec.data.packing:
            length = packed_length(spec.data, self._files.reader.positions)
            plan = partial(self._plan, source, pool, length)
            pool = PackedSequences(pool, self.group.decided_by_node(plan), spec.seed)
        return _Opened(pool, held_out)

    def _plan(self, source: ReadSource, pool: ExamplePool, length: int) -> Path:
        def build(directory: Path) -> dict[str, Any]:
            plan_packs(pool, length, self.spec.seed, directory / PACKS_FILE)
            return {}

        settings = [PACKS_FILE, length, self.spec.seed, self.spec.eval.fraction]
        return self._files.derived_files(source, settings, build) / PACKS_FILE


def _files_of(source: ReadSource) -> Iterator[Path]:
    """Yield the files of a source that ranks read during training."""
    if source.ids is not None:
        yield source.ids
    yield from source.paths
    yield from (array.path for array in source.arrays)


def _amount(source: tuple[str, int, int, int]) -> str:
    _, _, tokens, nbytes = source
    return f"{tokens} tokens" if tokens else f"{nbytes} bytes"


def _tokens_of(source: ReadSource) -> Tokens:
    if source.arrays:
        return TokenStream(source.arrays, source.vocabulary)
    if source.ids is None:
        return ByteTokens(source.paths, source.sizes)
    return TokenFile(source.ids, source.vocabulary, source.typecode)


def _tokens(source: ReadSource, pool: ExamplePool) -> int:
    return len(pool.tokens) if isinstance(pool, TokenWindows) else source.tokens


def _joined(pools: Sequence[ExamplePool]) -> ExamplePool:
    return pools[0] if len(pools) == 1 else JoinedPools(pools)


def _mixed(pools: Sequence[ExamplePool], spec: JobSpec) -> tuple[ExamplePool, tuple[str, ...]]:
    """Join `pools` into one pool, with weights if the job mixes them.

    Return (the pool, notes for the log).
    """
    if not spec.data.mixture:
        return _joined(pools), ()
    mixed = MixedPools(pools, spec.data.mixture, spec.seed)
    notes = (
        f"data.mixture: an epoch takes {count} sequences from {pattern}, which has {len(pool)} "
        f"sequences (used {count / len(pool):.3g} times on average)"
        for pattern, count, pool in zip(patterns_of(spec.data), mixed.counts, pools, strict=True)
    )
    return mixed, tuple(notes)


def model_input_of(config: Any) -> ModelInput:
    """Return the kind of input that a model with the Hugging Face config `config` takes."""
    return ModelInput(bool(config.is_encoder_decoder), positions_of(config))


def positions_of(config: Any) -> int | None:
    """Return the number of positions of a model with the Hugging Face config `config`; None if
    unlimited."""
    positions = getattr(config.get_text_config(), "max_position_embeddings", None)
    return positions if isinstance(positions, int) and positions > 0 else None


def packed_length(data: DataSpec, positions: int | None) -> int:
    """Return the length of a packed sequence in tokens, for a model with `positions` positions.

    Raises:
        BadRequest: neither the job nor the model limits the length.
    """
    length = fixed_length(data, positions)
    if length is None:
        raise BadRequest(
            "data.packing = true: data.sequence_length is missing, and the model's config has "
            "no number of positions to use instead; set data.sequence_length"
        )
    return length
