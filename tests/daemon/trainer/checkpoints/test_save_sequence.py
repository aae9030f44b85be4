"""What a save beside training came to is told at once, and ends all ranks at one step."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from tests.ops.weights.test_lora_merge import RECORD

pytestmark = pytest.mark.torch


def over() -> None:
    """Wait for the save under way."""
    for thread in threading.enumerate():
        if thread.name == "save":
            thread.join()


@pytest.mark.parametrize("wait", ["begin", "settle"])
def test_a_state_that_is_not_fit_is_raised_where_all_ranks_wait(wait: str) -> None:
    from zerotoolsd.trainer.checkpoints.save_sequence import Saves
    from zerotoolsd.trainer.rank.failures import Diverged

    class Spoilt:
        """A saver whose state is not finite."""

        def save(self, *_: Any) -> None:
            raise Diverged("not finite")

    def write(staging: Path) -> None:
        raise AssertionError(staging)

    spoilt: Any = Spoilt()
    saves = Saves(spoilt, lambda: write, beside=True)
    saves.begin(RECORD)
    over()
    assert saves.over() == []  # another rank may hear of it a step later
    with pytest.raises(Diverged):
        saves.begin(RECORD) if wait == "begin" else saves.settle()


def test_a_full_disk_is_named_where_torch_names_a_position() -> None:
    from zerotoolsd.trainer.engine_torch.write_shards import FULL_BYTES, why_not

    causes = "rank 0: [enforce fail at inline_container.cc:672] . unexpected pos 704 vs 598"
    assert why_not(causes, Path("/runs/a"), FULL_BYTES) == causes
    assert why_not(causes, Path("/runs/a"), 4096) == (
        "the disk of /runs/a is full: free some space there, or keep fewer checkpoints with "
        f"checkpoint.keep_last ({causes})"
    )
