"""Nodes that meet: each rank is a thread, as it is the store of torch that keeps them apart."""

from __future__ import annotations

import json
import threading
from concurrent.futures import Future
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from harness.ports import free_port
from tests.daemon.waiting import wait_for

pytest.importorskip("torch")

import torch.distributed as dist

from zerotools.core.errors import BadRequest
from zerotoolsd.trainer.rank import rendezvous_of_nodes
from zerotoolsd.trainer.rank.process_group import interface_to
from zerotoolsd.trainer.rank.rank_errors import MachineNotReady, StoppedBeforeStart
from zerotoolsd.trainer.rank.rank_settings import Rank
from zerotoolsd.trainer.rank.rendezvous_of_nodes import MeetingPlace, meet_nodes

pytestmark = pytest.mark.torch
LONG = timedelta(seconds=60)


@pytest.fixture(autouse=True)
def _fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rendezvous_of_nodes, "POLL_SECONDS", 0.01)
    monkeypatch.setattr(rendezvous_of_nodes, "AGAIN_SECONDS", 0.05)


class Nodes:
    """`ranks` of each of `nodes`, all in this process."""

    def __init__(self, directory: Path, nodes: int = 2, ranks: int = 1) -> None:
        self.place = MeetingPlace(
            "127.0.0.1", free_port(), nodes, 0, 30.0, "", directory, {"train": "a"}
        )
        self.ranks = ranks
        self.said: dict[int, list[str]] = {node: [] for node in range(nodes)}

    def begin(self, node: int, token: str, local: int = 0, **changes: Any) -> Future[dist.Store]:
        nodes = self.place.nodes
        rank = Rank(node * self.ranks + local, local, nodes * self.ranks, node, nodes)
        place = replace(self.place, node=node, token=token, **changes)
        found: Future[dist.Store] = Future()

        def run() -> None:
            try:
                found.set_result(meet_nodes(place, rank, self.said[node].append, LONG)[0])
            except BaseException as error:
                found.set_exception(error)

        threading.Thread(target=run, daemon=True).start()
        return found

    def wait_for_card(self, node: int) -> None:
        """Until the store has the card of a node."""
        wait_for(lambda: self.said[0], "node 0 to listen")
        store = dist.TCPStore("127.0.0.1", self.place.port, is_master=False, timeout=LONG)
        wait_for(lambda: store.check([f"node/{node}"]), "the card")


def both(found: list[Future[dist.Store]]) -> list[dist.Store]:
    return [each.result(timeout=30) for each in found]


def test_all_ranks_of_all_nodes_share_one_store(tmp_path: Path) -> None:
    nodes = Nodes(tmp_path / "out", nodes=2, ranks=2)
    found = [nodes.begin(node, f"attempt-{node}", local) for node in (1, 0) for local in (1, 0)]
    stores = both(found)
    stores[0].set("key", "value")
    assert [store.get("key") for store in stores] == [b"value"] * 4
    assert any("2 nodes have met" in line for line in nodes.said[0])
    assert list((tmp_path / "out").iterdir()) == []  # the probe is gone


def test_who_comes_in_vain_says_whom_it_waited_for(tmp_path: Path) -> None:
    nodes = Nodes(tmp_path, nodes=3)
    first = nodes.begin(0, "a", seconds=0.5)
    second = nodes.begin(1, "b", seconds=30.0)
    with pytest.raises(MachineNotReady, match="node 2 of 3 did not join at"):
        first.result(timeout=30)
    assert not second.done() or second.exception() is not None


def test_node_0_may_be_the_one_that_is_away(tmp_path: Path) -> None:
    alone = Nodes(tmp_path).begin(1, "b", seconds=0.5)
    with pytest.raises(MachineNotReady, match="node 0 does not answer"):
        alone.result(timeout=30)


def test_a_later_attempt_takes_the_place_of_an_earlier_one(tmp_path: Path) -> None:
    nodes = Nodes(tmp_path, nodes=3)
    first = nodes.begin(0, "a")
    gone = threading.Event()
    left = nodes.begin(1, "b-1", is_stopped=gone.is_set)
    nodes.wait_for_card(1)
    gone.set()
    with pytest.raises(StoppedBeforeStart):
        left.result(timeout=30)
    again = nodes.begin(1, "b-2")
    stores = both([first, again, nodes.begin(2, "c")])
    assert len(stores) == 3


def test_who_comes_to_a_meeting_without_it_waits_for_the_next(tmp_path: Path) -> None:
    nodes = Nodes(tmp_path)
    old = both([nodes.begin(0, "a-1"), nodes.begin(1, "b-1")])
    stranger = nodes.begin(1, "b-2")  # its first attempt ended, and node 0 does not know it yet
    wait_for(lambda: len(nodes.said[1]) == 2, "its second attempt")
    assert not stranger.done()
    old.clear()  # as the processes of the old meeting end
    stores = both([nodes.begin(0, "a-2"), stranger])
    stores[0].set("key", "value")
    assert stores[1].get("key") == b"value"


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        (
            {"job": {"train": "b"}},
            r"node 1 \(.*\) has a different job than node 0 .*train differ",
        ),
        ({"directory": "elsewhere"}, "does not see what node 0 .* wrote there; mount the same"),
    ],
)
def test_nodes_that_do_not_fit_say_so_everywhere(
    tmp_path: Path, changes: dict[str, Any], why: str
) -> None:
    nodes = Nodes(tmp_path / "out")
    if "directory" in changes:
        changes = {"directory": tmp_path / changes["directory"]}
    for each in (nodes.begin(0, "a"), nodes.begin(1, "b", **changes)):
        with pytest.raises(BadRequest, match=why):
            each.result(timeout=30)


@pytest.mark.parametrize(
    ("card", "why"),
    [
        ({"zerotools": "0.0.1"}, "has zerotools 0.0.1, but node 0"),
        ({"torch": "1.13"}, "has torch 1.13, but node 0"),
        ({"ranks": 7}, "has 7 ranks, but node 0"),
    ],
)
def test_what_nodes_must_have_in_common(card: dict[str, Any], why: str) -> None:
    first = rendezvous_of_nodes.own_card("a", 2, {"train": "x"})
    assert rendezvous_of_nodes.first_difference({0: first, 1: replace(first, token="b")}) is None
    found = rendezvous_of_nodes.first_difference({0: first, 1: replace(first, **card)})
    assert found is not None
    assert why in found


def test_two_machines_that_say_to_be_the_same_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes = Nodes(tmp_path, nodes=3)
    first, second = nodes.begin(0, "a"), nodes.begin(1, "b")
    nodes.wait_for_card(1)
    monkeypatch.setattr(rendezvous_of_nodes, "boot_id", lambda: "another boot")
    monkeypatch.setattr(rendezvous_of_nodes.socket, "gethostname", lambda: "another")
    with pytest.raises(BadRequest, match="both have this number; give each node a different one"):
        nodes.begin(1, "x").result(timeout=30)
    monkeypatch.undo()
    assert len(both([first, second, nodes.begin(2, "c-2")])) == 3


def test_a_port_that_another_program_has(tmp_path: Path) -> None:
    nodes = Nodes(tmp_path)
    other = dist.TCPStore("127.0.0.1", nodes.place.port, is_master=True, wait_for_workers=False)
    with pytest.raises(MachineNotReady, match="another program listens there"):
        nodes.begin(0, "a").result(timeout=30)
    assert other is not None


def test_clocks_that_are_apart_are_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = Nodes(tmp_path)
    found = nodes.begin(0, "a")
    nodes.wait_for_card(0)
    card = replace(rendezvous_of_nodes.own_card("b", 1, {"train": "a"}), time=0.0)
    monkeypatch.setattr(rendezvous_of_nodes, "own_card", lambda *_: card)
    both([found, nodes.begin(1, "b")])
    assert any("the clock of node 1" in line and "behind" in line for line in nodes.said[0])


def test_a_meeting_that_was_sealed_with_one_that_went_begins_anew(tmp_path: Path) -> None:
    nodes = Nodes(tmp_path)
    first = nodes.begin(0, "a")
    nodes.wait_for_card(0)
    store = dist.TCPStore("127.0.0.1", nodes.place.port, is_master=False, timeout=LONG)
    gone = rendezvous_of_nodes.own_card("b-1", 1, {"train": "a"})
    store.set("node/1", gone.text)  # and then its process was killed
    wait_for(lambda: store.check(["sealed"]), "the meeting to be sealed")
    again = nodes.begin(1, "b-2")
    stores = both([first, again])
    stores[0].set("key", "value")
    assert stores[1].get("key") == b"value"


def test_a_machine_that_was_started_again_takes_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes = Nodes(tmp_path, nodes=3)
    first = nodes.begin(0, "a")
    nodes.wait_for_card(0)
    store = dist.TCPStore("127.0.0.1", nodes.place.port, is_master=False, timeout=LONG)
    before = replace(
        rendezvous_of_nodes.own_card("b-1", 1, {"train": "a"}), boot_id="before the reboot"
    )
    store.set("node/1", before.text)
    assert len(both([first, nodes.begin(1, "b-2"), nodes.begin(2, "c")])) == 3


def test_the_card_is_plain_text_that_other_versions_read() -> None:
    card = rendezvous_of_nodes.own_card("a", 2, {"train": "x"})
    assert rendezvous_of_nodes.parse_card(card.text) == card
    newer = json.dumps({**json.loads(card.text), "new": 1, "zerotools": "9.9"})
    found = rendezvous_of_nodes.first_difference(
        {0: card, 1: rendezvous_of_nodes.parse_card(newer)}
    )
    assert found is not None
    assert "has zerotools 9.9, but node 0" in found
    older = rendezvous_of_nodes.first_difference({0: card, 1: rendezvous_of_nodes.parse_card("{}")})
    assert older is not None
    assert "of an unknown version" in older


def test_the_interface_of_an_address() -> None:
    assert interface_to("127.0.0.1", 1) == "lo"
    assert interface_to("no such host.invalid", 1) is None
