"""The thread that writes a checkpoint beside training, of a rank on a GPU."""

from __future__ import annotations

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.ops.weights.test_lora_merge import RECORD

pytestmark = pytest.mark.torch


@pytest.mark.parametrize(("place", "chosen"), [("cuda:3", ["cuda:3"]), ("cpu", [])])
def test_the_thread_writes_on_the_device_of_its_rank(
    monkeypatch: pytest.MonkeyPatch, place: str, chosen: list[str]
) -> None:
    import torch

    from zerotoolsd.trainer.save_during_training import _in_thread

    done = list[str]()
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: done.append(str(device)))
    group: Any = SimpleNamespace(device=torch.device(place))
    _in_thread(lambda staging, group: done.append(f"writes {staging}"), Path("/s"), group)
    assert done == [*chosen, "writes /s"]


def over() -> None:
    """Wait for the save under way."""
    for thread in threading.enumerate():
        if thread.name == "save":
            thread.join()


@pytest.mark.parametrize("wait", ["begin", "settle"])
def test_a_state_that_is_not_fit_is_raised_where_all_ranks_wait(wait: str) -> None:
    from zerotoolsd.trainer.rank.rank_errors import Diverged
    from zerotoolsd.trainer.save_during_training import Saves

    class Spoilt:
        """A saver whose state is not finite."""

        def save(self, *_: Any) -> None:
            raise Diverged("not finite")

    def write(staging: Path) -> None:
        raise AssertionError(staging)

    spoilt: Any = Spoilt()
    saves = Saves(spoilt, lambda: write, in_background=True)
    saves.begin(RECORD)
    over()
    assert saves.collect_results() == []  # another rank may hear of it a step later
    with pytest.raises(Diverged):
        saves.begin(RECORD) if wait == "begin" else saves.settle()


def test_a_full_disk_is_named_where_torch_names_a_position() -> None:
    from zerotoolsd.trainer.engine_torch.save_and_load_shards import FULL_BYTES, explain_write_error

    causes = "rank 0: [enforce fail at inline_container.cc:672] . unexpected pos 704 vs 598"
    assert explain_write_error(causes, Path("/runs/a"), FULL_BYTES) == causes
    assert explain_write_error(causes, Path("/runs/a"), 4096) == (
        "the disk of /runs/a is full: free some space there, or keep fewer checkpoints with "
        f"checkpoint.keep_last ({causes})"
    )
