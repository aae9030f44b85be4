"""Computes the reference log-probabilities of preference pairs (DPO), with the initial weights.

All ranks compute them once and keep them in the output directory. So the initial model need not
stay in memory next to the trained one, and a restart does not compute them again.

    <output_dir>/reference/weights                    the digest of the initial weights
    <output_dir>/reference/<data>-<weights>.f32       two fp32 numbers for each pair, in order
    <output_dir>/reference/<data>-<weights>.draft     the same, not yet complete

`<data>` is the digest of all tokens that the model reads and learns. So it depends on the data, the
tokenizer and the length limits. Each checkpoint has a copy of the directory. A run that continues
from a checkpoint has only the weights of that step, so it needs the log-probabilities in the
checkpoint.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from zerotools.core.errors import BadFile, BadRequest
from zerotools.jobs.jobfile_tables.spec import JobSpec
from zerotools.runs.job_checkpoint_file_names import MANIFEST
from zerotoolsd.trainer.checkpoints.resume_point import ResumePoint
from zerotoolsd.trainer.data.example_store import PreferencePairs, References
from zerotoolsd.trainer.data.token_cache import cached_digest
from zerotoolsd.trainer.data.training_data import TrainingData
from zerotoolsd.trainer.engine.engine_interface import Engine, ScoringEngine
from zerotoolsd.trainer.rank.process_group import WorldGroup
from zerotoolsd.trainer.reporting.reporter import Reporter

DIRECTORY, WEIGHTS = "reference", "weights"
_PAIR_BYTES = 8
_SHORT = 32
_WEIGHT_FILES = (".safetensors", ".bin")


@dataclass
class ReferenceRun:
    """Computes the reference log-probabilities of a run and keeps them.

    All ranks call each method together.
    """

    spec: JobSpec
    config: str
    """The configuration of the model as JSON text."""
    engine: Engine | ScoringEngine
    group: WorldGroup
    reporter: Reporter
    stop_asked: Callable[[], bool]

    def find(self, data: TrainingData, start: ResumePoint | None) -> tuple[Path, ...]:
        """Give each pair of `data` its reference log-probabilities.

        They are read from the output directory, or computed with the engine. The engine has the
        weights of the checkpoint `start`, or the initial weights if `start` is None. If a stop is
        requested, the computation ends early, and the next attempt continues it.

        Returns the files that must be copied into each checkpoint; empty if `data` has no pairs or
        the computation ended early.

        Raises:
            BadRequest: an earlier attempt has begun this run, but the log-probabilities do not
                exist; or a file cannot be written.
            BadFile: the file of the log-probabilities is damaged.
        """
        if not data.pairs:
            return ()
        files = [self.directory / WEIGHTS]
        begins = start is None or not _is_in(start.path, self.directory.parent)
        weights, is_given = self.group.decided_by_rank_zero(lambda: self._weights(start, begins))
        for pairs in data.pairs:
            name = self.group.decided_by_rank_zero(pairs.digest)[:_SHORT]
            path = self.directory / f"{name}-{weights[:_SHORT]}.f32"
            if not self.group.decided_by_rank_zero(path.exists):
                if is_given:
                    raise BadRequest(_missing_message(self.directory))
                if not self._compute(pairs, path):
                    return ()
            pairs.set_references(_read(path, len(pairs)))
            files.append(path)
        return tuple(files)

    @property
    def directory(self) -> Path:
        return Path(self.spec.output_dir or "") / DIRECTORY

    def _weights(self, start: ResumePoint | None, begins: bool) -> tuple[str, bool]:
        """Return (the digest of the initial weights, whether the reference log-probabilities must
        already exist).

        `begins` is True if the run has no checkpoint of its own yet.
        """
        try:
            return self._read_or_write_digest(start, begins)
        except OSError as error:
            raise BadRequest(
                f"{error.filename or self.directory}: the reference log-probabilities cannot be "
                f"stored: {error.strerror}"
            ) from None

    def _read_or_write_digest(self, start: ResumePoint | None, begins: bool) -> tuple[str, bool]:
        note = self.directory / WEIGHTS
        self.directory.mkdir(parents=True, exist_ok=True)
        saved = None if start is None else start.path / DIRECTORY
        if saved is not None and (saved / WEIGHTS).exists():
            for path in saved.iterdir():
                shutil.copyfile(path, self.directory / path.name)
        elif not begins and not note.exists():
            raise BadRequest(_missing_message(self.directory))
        if not begins or (saved is not None and saved.exists()):
            return note.read_text("ascii"), True
        found = self._digest(start)
        note.write_text(found, "ascii")
        return found, False

    def _digest(self, start: ResumePoint | None) -> str:
        spec, found = self.spec, hashlib.sha256(self.config.encode())
        found.update(f" {spec.train.precision}".encode())
        if spec.lora.packs_frozen:
            found.update(f" {spec.lora.frozen_precision} {spec.lora.double_quant}".encode())
        if start is not None:
            paths = [start.path / MANIFEST]
            if not paths[0].exists():
                paths = sorted(path for path in start.path.rglob("*") if path.is_file())
        elif spec.model.path is not None:
            directory = Path(spec.model.path)
            paths = sorted(p for p in directory.iterdir() if p.suffix in _WEIGHT_FILES)
        else:
            paths = []
            found.update(f" {spec.seed}".encode())
        if spec.lora.path is not None:
            paths += sorted(Path(spec.lora.path).glob("adapter_*"))
        for path in paths:
            found.update(cached_digest(path, self.directory / "stamps").encode())
        return found.hexdigest()

    def _compute(self, pairs: PreferencePairs, path: Path) -> bool:
        """Compute the log-probabilities of `pairs`, and write them to `path`.

        Pairs that are already in the unfinished file (`.draft`) are not computed again. Returns
        False if a stop was requested before the end.
        """
        assert isinstance(self.engine, ScoringEngine)
        draft, rank = path.with_suffix(".draft"), self.group.rank
        data_ranks = rank.data_ranks
        size = self.spec.train.micro_batch_size or max(1, self.spec.train.batch_size // data_ranks)
        begin = self.group.decided_by_rank_zero(lambda: _done(draft, size))
        self.reporter.log_line(
            f"computing the reference log-probabilities of {len(pairs) - begin} pairs of "
            f"{len(pairs)}"
        )
        for first in range(begin, len(pairs), size * data_ranks):
            own = first + rank.data_rank * size
            numbers = range(own, min(own + size, len(pairs)))
            mine = self._of(pairs, numbers)
            mine = mine if rank.leads_same_data else []
            everyone = self.group.gathered((mine, self.stop_asked()))
            rows = [row for found, _ in everyone for row in found]
            self.group.decided_by_rank_zero(lambda rows=rows: _append(draft, rows))  # type: ignore[misc]
            self.reporter.alive()
            self.group.heartbeat.beat()
            if any(asked for _, asked in everyone):
                return False
        self.group.decided_by_rank_zero(lambda: _settle(draft, path))
        return True

    def _of(self, pairs: PreferencePairs, numbers: range) -> list[tuple[float, float]]:
        """Return the log-probabilities (chosen, rejected) of the pairs with these `numbers`.

        All ranks must call it together, also a rank without pairs (empty `numbers`).
        """
        assert isinstance(self.engine, ScoringEngine)
        chosen = [pairs.example(number) for number in numbers] or [pairs.example(0)]
        found = self.engine.log_probabilities([*chosen, *(pair.rejected for pair in chosen)])
        count = len(chosen)
        return list(zip(found[:count], found[count:], strict=True))[: len(numbers)]


def _is_in(path: Path, directory: Path) -> bool:
    return path.resolve().is_relative_to(directory.resolve())


def _missing_message(directory: Path) -> str:
    return (
        f"{directory}: has no reference log-probabilities for this data: the data, the "
        "tokenizer or the lengths have changed since the run began, or files were removed; undo "
        "this change, or start a new run with model.path and another output_dir"
    )


def _done(draft: Path, size: int) -> int:
    """Return the number of pairs in the unfinished file `draft`.

    The file is written in batches of `size` pairs. An incomplete batch at its end is cut off.
    """
    if not draft.exists():
        return 0
    done = draft.stat().st_size // _PAIR_BYTES // size * size
    os.truncate(draft, done * _PAIR_BYTES)
    return done


def _append(draft: Path, rows: list[tuple[float, float]]) -> None:
    try:
        with draft.open("ab") as file:
            file.write(np.asarray(rows, "<f4").tobytes())
            file.flush()
            os.fsync(file.fileno())  # a file that a power cut has lengthened may be filled with 0
    except OSError as error:
        raise BadRequest(f"{draft} cannot be written: {error.strerror}") from None


def _settle(draft: Path, path: Path) -> None:
    with draft.open("rb+") as file:
        os.fsync(file.fileno())
    draft.replace(path)


def _read(path: Path, count: int) -> References:
    found = np.fromfile(path, "<f4")
    if found.size != 2 * count or not np.isfinite(found).all():
        raise BadFile(
            f"{path}: must have {2 * count} finite numbers for {count} pairs, but has "
            f"{found.size} numbers, or some are not finite: the file is damaged; remove it and "
            "start the run again"
        )
    return found.reshape(count, 2).astype(np.float32)


def add_references(files: Sequence[Path], staging: Path) -> None:
    """Copy the files of log-probabilities `files` into the staging directory of a checkpoint."""
    if files:
        (staging / DIRECTORY).mkdir()
    for path in files:
        shutil.copyfile(path, staging / DIRECTORY / path.name)


def as_json(config: object) -> str:
    """Return the configuration of a model as JSON text. Equal configurations give the same text."""
    return json.dumps(config, sort_keys=True, default=str)
