"""Every committed input of every target once more: the seeds, and what was found and mended."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fuzzing.targets import CORPUS, TARGETS, check_of, seeds

INPUTS = [(target, path) for target in TARGETS for path in seeds(target)]
LARGEST = 2**14


@pytest.mark.parametrize(
    ("target", "path"), INPUTS, ids=[f"{target}-{path.name}" for target, path in INPUTS]
)
def test_it_is_read_or_refused(target: str, path: Path) -> None:
    check_of(target)(path.read_bytes())


def test_the_corpus_is_small() -> None:
    assert {each.name for each in CORPUS.iterdir()} == {*TARGETS, "dcp-data"}
    assert max(path.stat().st_size for path in CORPUS.rglob("*") if path.is_file()) <= LARGEST
