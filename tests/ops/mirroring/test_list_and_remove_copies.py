"""Which copies are whole, and which of them go."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.stores.gcs import GcsServer
from tests.io.stores.far import served
from tests.ops.mirroring.made import BUDGET, place, save
from zerotools.ops.mirroring.list_and_remove_copies import (
    is_copy,
    newest_copy,
    point_at,
    remove_old,
)
from zerotools.ops.mirroring.send_copy import send_copy
from zerotools.runs.deletable_checkpoints import KeepRule


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[GcsServer]:
    """Copies of steps 2, 4 and 6."""
    with served(monkeypatch) as store:
        for step in (2, 4, 6):
            path = save(tmp_path, step)
            send_copy(path, place() / path.name, budget=BUDGET)
        yield store


def test_one_of_which_an_object_is_gone_is_passed_over(store: GcsServer) -> None:
    assert newest_copy(place()).path == place() / "step-00000006"
    assert newest_copy(place(), 6).path is None
    del store.objects[store.bucket]["run/step-00000006/config.json"]
    place().forget()
    found = newest_copy(place())
    assert found.path == place() / "step-00000004"
    assert "config.json is missing" in found.skipped[0].why


def test_a_copy_of_another_checkpoint_is_not_this_one(store: GcsServer) -> None:
    assert not is_copy(place() / "step-00000006", "0" * 64)
    assert not is_copy(place() / "step-00000008", "0" * 64)


def test_what_a_hint_names_stays(store: GcsServer) -> None:
    point_at(place(), "best", "step-00000002")
    place().forget()
    gone = remove_old(place(), KeepRule(1), {"step-00000006"})
    assert gone == [place() / "step-00000004"]
    assert {name.split("/")[1] for name in store.sizes("run/step-")} == {
        "step-00000002",
        "step-00000006",
    }


def test_what_another_tool_put_there_is_not_removed_and_does_not_count(store: GcsServer) -> None:
    store.put("run/step-00000001/notes.txt", b"mine")
    store.put("run/step-00000004/scores.json", b"mine")
    store.put("run/step-00000005/notes.txt", b"mine")
    place().forget()
    assert remove_old(place(), KeepRule(3), {"step-00000006"}) == []
    gone = remove_old(place(), KeepRule(1), {"step-00000006"})
    assert gone == [place() / "step-00000004", place() / "step-00000002"]
    assert remove_old(place(), KeepRule(1), {"step-00000006"}) == []
    assert [name for name in store.sizes("run/") if "step-00000006" not in name] == [
        "run/step-00000001/notes.txt",
        "run/step-00000004/scores.json",
        "run/step-00000005/notes.txt",
    ]


def test_one_whose_record_was_left_over_is_whole(store: GcsServer) -> None:
    marker = json.loads(store.get("run/step-00000004/.zerotools-output.json"))
    tree = {"run": marker["run"], "identity": {}, "files": [], "done": {}}
    store.put("run/step-00000004/.zerotools-writing.json", json.dumps(tree).encode())
    place().forget()
    assert remove_old(place(), KeepRule(2), ()) == [place() / "step-00000002"]
    assert newest_copy(place(), 3).path == place() / "step-00000006"


def test_a_part_that_nobody_completes_does_not_count_and_goes(store: GcsServer) -> None:
    tree = {"run": "r", "identity": {}, "files": ["job.json"], "done": {}}
    for step in (5, 7):
        store.put(f"run/step-0000000{step}/.zerotools-writing.json", json.dumps(tree).encode())
    place().forget()
    store.put("run/step-00000001/.zerotools-writing.json", json.dumps(tree).encode())
    place().forget()
    assert remove_old(place(), KeepRule(4), {"step-00000005"}) == [place() / "step-00000001"]
    assert remove_old(place(), KeepRule(2), {"step-00000005"}) == [place() / "step-00000002"]
    assert remove_old(place(), KeepRule(2), ()) == [place() / "step-00000005"]
    assert {name.split("/")[1] for name in store.sizes("run/step-")} == {
        "step-00000004",
        "step-00000006",
        "step-00000007",
    }
