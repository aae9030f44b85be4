import json
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from zerotoolsd.trainer.rank.notify_supervisor import LARGEST_DATAGRAM, Notifier


@pytest.fixture
def receiver(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as bound:
        bound.bind(str(tmp_path / "notify.sock"))
        bound.settimeout(0.0)
        yield bound


def test_a_datagram_says_who_when_and_where(receiver: socket.socket, tmp_path: Path) -> None:
    with Notifier(str(tmp_path / "notify.sock"), 1) as notifier:
        notifier.step = 4
        notifier.enter("save")
        notifier.event("checkpoint", path="/there", bytes=3)
    found = json.loads(receiver.recv(65536))
    assert (found["rank"], found["phase"], found["step"]) == (1, "save", 4)
    assert found["rss_bytes"] > 0
    assert "event" not in found
    found = json.loads(receiver.recv(65536))
    assert (found["event"], found["path"], found["bytes"]) == ("checkpoint", "/there", 3)


def test_a_long_message_is_cut_to_fit(receiver: socket.socket, tmp_path: Path) -> None:
    with Notifier(str(tmp_path / "notify.sock"), 0) as notifier:
        notifier.event("error", kind="crash", message="é" * 9000)
    data = receiver.recv(65536)
    assert len(data) <= LARGEST_DATAGRAM
    assert json.loads(data)["message"].endswith("…")


def test_a_directory_with_a_long_name_is_reached(tmp_path: Path) -> None:
    folder = tmp_path / ("deep" * 30)
    folder.mkdir()
    (tmp_path / "short").symlink_to(folder)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as bound:
        bound.bind(str(tmp_path / "short" / "notify.sock"))
        with Notifier(str(folder / "notify.sock"), 0) as notifier:
            notifier.enter("init")
        assert json.loads(bound.recv(65536))["phase"] == "init"


def test_a_receiver_that_is_behind_does_not_stop_training(
    receiver: socket.socket, tmp_path: Path
) -> None:
    with Notifier(str(tmp_path / "notify.sock"), 0) as notifier:
        for number in range(5000):
            notifier.event("step", loss=float(number))
    assert json.loads(receiver.recv(65536))["loss"] == 0.0


@pytest.mark.parametrize("address", [None, "/nowhere/notify.sock"])
def test_without_a_receiver_nothing_is_said(address: str | None) -> None:
    notifier = Notifier(address, 0)
    notifier.enter("train")
    notifier.event("error", kind="crash", message="x")


def test_a_receiver_that_goes_away_does_not_stop_training(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as bound:
        bound.bind(str(tmp_path / "notify.sock"))
        notifier = Notifier(str(tmp_path / "notify.sock"), 0)
    with notifier:
        notifier.enter("train")
