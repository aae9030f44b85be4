"""Token files train as the text that they were made of, and what is another order is said."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.daemon.trainer.several import Runs, run_all
from zerotools.runs import checkpoint_dirs

pytestmark = pytest.mark.torch


def held_out(fraction: float, **changes: Any) -> dict[str, Any]:
    return {"eval": {"fraction": fraction}, **changes}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory, text: Path) -> Runs:
    """Two ranks; the ids of the bytes of `text`, in all that a job can name."""
    directory = tmp_path_factory.mktemp("tokens")
    ids = text.read_bytes()
    half = len(ids) // 2
    np.save(directory / "a.npy", np.frombuffer(ids[:half], "u1").astype("i8"))
    np.save(directory / "b.npy", np.frombuffer(ids[half:], "u1").astype("u4"))
    (directory / "all.bin").write_bytes(np.frombuffer(ids, "u1").astype("<u2").tobytes())
    (directory / "changed").mkdir()
    changed = directory / "changed" / text.name
    changed.write_bytes(ids.upper())
    half_way = directory / "out" / "held-out" / "out" / checkpoint_dirs.directory_name(2)
    jobs = {
        "text": {},
        "npy": {"data": {"text": [], "tokens": [str(directory / "*.npy")]}},
        "raw": {"data": {"text": [], "tokens": [str(directory / "*.bin")], "token_type": "uint16"}},
        "held-out": held_out(0.25, checkpoint={"every": 2}),
        "other-order": held_out(0.1, resume_from=str(half_way), data={"text": [str(changed)]}),
        "same-order": held_out(0.25, resume_from=str(half_way)),
    }
    return run_all(directory, text, 2, jobs)


@pytest.mark.parametrize("kind", ["npy", "raw"])
def test_they_train_as_the_text_does(runs: Runs, kind: str) -> None:
    assert len(runs.losses("text")) == 4
    assert runs.losses(kind) == runs.losses("text")
    assert runs.ended(kind) == runs.ended("text")


def test_another_number_of_sequences_is_said_at_resume(runs: Runs) -> None:
    whole = checkpoint_dirs.read_record(runs.checkpoint("text", 4)).data
    kept = checkpoint_dirs.read_record(runs.checkpoint("held-out", 2)).data
    assert whole is not None
    assert kept is not None
    assert whole.sequences is not None
    assert kept.sequences == whole.sequences - round(whole.sequences * 0.25)
    log = (runs.directory.parent / "rank-0.log").read_text("utf-8")
    note, of_files = (line for line in log.splitlines() if line.startswith("note: "))
    was = "the data has changed since step-00000002 was saved (verses.txt changed): "
    assert was in of_files
    now = whole.sequences - round(whole.sequences * 0.1)
    assert f"an epoch had {kept.sequences} sequences" in note
    assert f"has {now} now" in note
