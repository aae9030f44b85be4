"""From `[data]` to batches: rank 0 looks at the files once, the others take its word."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from zerotools.formats.dcp.jobrecord import DataRecord
from zerotools.jobs.spec import JobSpec
from zerotoolsd.trainer.batches import Batches
from zerotoolsd.trainer.corpus import ByteTokens, Tokens, find_files, measure
from zerotoolsd.trainer.group import Group
from zerotoolsd.trainer.tokenizing import TokenFile, load_tokenizer, tokenize

BYTES = "bytes"
TOKEN_FILE = "tokens.u32"


@dataclass(frozen=True)
class _Survey:
    paths: list[Path]
    sizes: list[int]
    vocabulary: int


def open_data(spec: JobSpec, run_dir: Path, group: Group) -> tuple[Batches, DataRecord]:
    """The global order of sequences, the same on every rank, and what it is made of.

    Raises:
        ZerotoolsError: no file matches, one is not UTF-8, there is too little text, or the
            tokenizer does not load; on every rank.
    """
    token_file = run_dir / TOKEN_FILE

    def survey() -> _Survey:
        paths = find_files(spec.data.text)
        if spec.data.tokenizer == BYTES:
            return _Survey(paths, measure(paths), ByteTokens.vocabulary)
        tokenizer = load_tokenizer(Path(spec.data.tokenizer))
        tokenize(paths, tokenizer, token_file)
        return _Survey(paths, [], len(tokenizer))

    found = group.decided_by_rank_zero(survey)
    tokens: Tokens
    if spec.data.tokenizer == BYTES:
        tokens = ByteTokens(found.paths, found.sizes)
    else:
        tokens = TokenFile(token_file, found.vocabulary)
    batches = Batches(tokens, sequence_length=spec.data.sequence_length, seed=spec.seed)
    return batches, DataRecord(files=len(found.paths), tokens=len(tokens))
