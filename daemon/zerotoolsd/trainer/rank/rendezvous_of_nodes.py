"""Lets the nodes of a job meet (rendezvous) before a rank uses a GPU.

The daemon of each node does not know the other daemons, and starts an attempt when it can. Rank 0
of node 0 listens at `rendezvous.address` with a store of torch. The first rank of each node writes
a card into the store: which node it is, its job, and the token of its attempt.

    node/0, node/1     the cards; a later attempt of a node replaces its earlier card
    sealed             the tokens of all cards, and a probe file; rank 0 writes it when all cards
                       exist and match
    seen/1             whether node 1 sees the probe file in its output_dir
    left/1             node 1 has a newer attempt than the sealed attempt
    begin              the token of this rendezvous, or an error in one sentence; from rank 0

After the rendezvous was sealed, only the attempts in it take part. If a node then starts a newer
attempt, that attempt cannot join: the other ranks have failed, or will fail, because a rank is
missing. It leaves, and tries again until there is a new rendezvous. All keys of the process group
begin with the token, so that attempts do not affect each other.
"""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

import zerotools
from zerotools.core.counts_and_sizes import count_text
from zerotools.core.errors import BadRequest
from zerotools.jobs.binding.durations import duration_text
from zerotoolsd.trainer.rank.rank_errors import MachineNotReady, StoppedBeforeStart
from zerotoolsd.trainer.rank.rank_settings import Rank

POLL_SECONDS = 0.1
AGAIN_SECONDS = 1.0
ANSWER_SECONDS = 60.0
"""Time in seconds that a node has to check the probe file, or to read an error."""
CLOCK_SECONDS = 30.0
KNOCK_SECONDS = 5.0
_CONNECT = timedelta(seconds=2)
FAILED = ".zerotools-failed-"
"""Prefix of the names of the note files of nodes that failed permanently.

The token of the rendezvous follows.
"""
_PROBE = ".zerotools-meeting-"


@dataclass(frozen=True)
class MeetingPlace:
    """The rendezvous of a job's nodes: an address, and the number of seconds that a node waits.

    Attributes:
        directory: the job's output_dir, which all nodes share.
        token: identifies this node's attempt.
        job: a digest of each table that all nodes must have in common.
        is_stopped: returns whether this node was asked to stop.
        waits: called again and again while this node waits.
    """

    host: str
    port: int
    nodes: int
    node: int
    seconds: float
    token: str
    directory: Path
    job: Mapping[str, str]
    is_stopped: Callable[[], bool] = lambda: False
    waits: Callable[[], None] = lambda: None

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"


def meet_nodes(
    place: MeetingPlace, rank: Rank, log_line: Callable[[str], None], timeout: timedelta
) -> tuple[dist.Store, str]:
    """Wait for all nodes. Return (the store for the process group, the token of the rendezvous).

    Every rank calls it. `timeout` is the timeout of the returned store.

    Raises:
        BadRequest: the nodes do not run the same job, or do not share output_dir.
        MachineNotReady: not all nodes joined in time. They may come later.
        StoppedBeforeStart: this attempt was asked to stop.
    """
    return _Meeting(place, rank, log_line, timeout).meet()


class _Again(Exception):
    """This rendezvous lacks this attempt, or its store is gone; the caller tries again."""


class _Meeting:
    def __init__(
        self, place: MeetingPlace, rank: Rank, log_line: Callable[[str], None], timeout: timedelta
    ) -> None:
        self._place = place
        self._rank_timeout = timeout
        self._rank = rank
        self._log_line = log_line
        self._until = time.monotonic() + place.seconds
        self._why = "no process listens there yet"

    def meet(self) -> tuple[dist.Store, str]:
        if self._rank.leads_node:
            who = f"node {self._place.node} of {self._place.nodes}"
            self._log_line(f"{who} waits for the other nodes at {self._place.address}")
        store: dist.TCPStore | None = None
        while True:
            try:
                store = self._store()
                token = self._lead(store) if self._rank.leads else self._follow(store)
            except _Again:
                store = None  # else its port would stay taken
                self._pause(AGAIN_SECONDS)
                continue
            except (RuntimeError, ConnectionError) as error:  # of torch's store: node 0 went
                self._why, store = _first_line(error), None
                self._pause(AGAIN_SECONDS)
                continue
            store.set_timeout(self._rank_timeout)
            return dist.PrefixStore(token, store), token

    def _store(self) -> dist.TCPStore:
        place, leads = self._place, self._rank.leads
        if leads:
            _check_address_free(place)
        else:
            self._knock()
        try:
            store = dist.TCPStore(
                place.host,
                place.port,
                is_master=leads,
                wait_for_workers=False,
                timeout=_CONNECT,
            )
        except (RuntimeError, ValueError) as error:
            if leads:
                raise MachineNotReady(
                    f"rendezvous.address = {place.address}: the ranks of node 0 cannot reach this "
                    f"address: {_first_line(error)}; set an address of this machine"
                ) from None
            self._why = _first_line(error)
            raise _Again from None
        store.set_timeout(timedelta(seconds=ANSWER_SECONDS))
        return store

    def _knock(self) -> None:
        """Check that a process listens at the address, before torch connects.

        For each failed connection, torch would print a page of C++ frames.
        """
        try:
            socket.create_connection((self._place.host, self._place.port), KNOCK_SECONDS).close()
        except OSError as error:
            self._why = error.strerror or _first_line(error)
            raise _Again from None

    # -- rank 0

    def _lead(self, store: dist.TCPStore) -> str:
        place, cards = self._place, dict[int, NodeCard]()
        store.set(_node(place.node), self._card().text)
        while len(cards) < place.nodes:
            for node in range(place.nodes):
                self._read_card(store, node, cards)
            if len(cards) < place.nodes:
                self._pause(POLL_SECONDS, lambda: self._missing(cards))
        self._clear_leftovers()
        probe = _PROBE + place.token
        problem = first_difference(cards) or self._write_probe(probe)
        tokens = [cards[node].token for node in range(place.nodes)]
        # A node that has replaced its card since then is not in it, and comes again.
        store.set("sealed", json.dumps({"tokens": tokens, "probe": probe, "problem": problem}))
        blind = self._blind(store, cards)
        with suppress(OSError):
            (place.directory / probe).unlink()
        if problem is None and blind:
            problem = (
                f"output_dir = {place.directory}: {', '.join(blind)} does not see what node 0 "
                f"({cards[0].host}) wrote there; mount the same shared directory on all nodes"
            )
        store.set("begin", json.dumps({"token": place.token, "problem": problem}))
        if problem is not None:
            self._until_read(store)
            raise BadRequest(problem)
        hosts = ", ".join(cards[node].host for node in range(place.nodes))
        self._log_line(f"{count_text(place.nodes, 'node')} have met: {hosts}")
        return place.token

    def _read_card(self, store: dist.TCPStore, node: int, cards: dict[int, NodeCard]) -> None:
        if not store.check([_node(node)]):
            return
        card = parse_card(store.get(_node(node)).decode())
        if cards.get(node) == card:
            return
        cards[node] = card
        apart = card.time - time.time()
        if abs(apart) > CLOCK_SECONDS:
            which = "ahead of" if apart > 0 else "behind"
            self._log_line(
                f"note: the clock of node {node} ({card.host}) is {duration_text(int(abs(apart)))} "
                f"{which} the clock of node 0: times in logs and of files will not be in order"
            )

    def _missing(self, cards: Mapping[int, NodeCard]) -> str:
        lacking = [str(node) for node in range(self._place.nodes) if node not in cards]
        which = f"node {lacking[0]}" if len(lacking) == 1 else f"nodes {', '.join(lacking)}"
        return f"{which} of {self._place.nodes} did not join"

    def _write_probe(self, probe: str) -> str | None:
        """Write the file `probe` into the shared directory, where all nodes must see it.

        Returns the error message; None if the file was written.
        """
        directory = self._place.directory
        try:
            directory.mkdir(parents=True, exist_ok=True)
            (directory / probe).write_text(self._place.token, "utf-8")
        except OSError as error:
            return f"output_dir {directory} cannot be written on node 0: {error.strerror}"
        return None

    def _clear_leftovers(self) -> None:
        """Remove the files that earlier rendezvous left in the shared directory."""
        with suppress(OSError):
            for each in self._place.directory.iterdir():
                if each.name.startswith((_PROBE, FAILED)):
                    each.unlink(missing_ok=True)

    def _blind(self, store: dist.TCPStore, cards: Mapping[int, NodeCard]) -> list[str]:
        """Return the nodes that do not see the probe file, as text, such as `node 1 (host)`."""
        until, found = time.monotonic() + ANSWER_SECONDS, []
        for node in range(1, self._place.nodes):
            while not store.check([_seen(node)]):
                if time.monotonic() > until or store.check([_left_key(node)]):
                    raise RuntimeError(f"node {node} ({cards[node].host}) disconnected")
                self._pause(POLL_SECONDS)
            if store.get(_seen(node)) != b"yes":
                found.append(f"node {node} ({cards[node].host})")
        return found

    def _until_read(self, store: dist.TCPStore) -> None:
        """Wait until the other nodes have read the result, but only for a short time.

        The store ends with this process, so the other nodes must read the result before this
        process ends.
        """
        until = time.monotonic() + ANSWER_SECONDS / 10
        keys = [_read(node) for node in range(1, self._place.nodes)]
        while keys and not store.check(keys) and time.monotonic() < until:
            time.sleep(POLL_SECONDS)

    # -- all others

    def _follow(self, store: dist.TCPStore) -> str:
        place, leads = self._place, self._rank.leads_node
        if leads and not store.check(["sealed"]):
            self._publish_card(store)
        while not store.check(["sealed"]):
            self._pause(POLL_SECONDS, lambda: "not all nodes joined")
        sealed = json.loads(store.get("sealed"))
        if sealed["tokens"][place.node] != place.token:
            if leads:
                store.set(_left_key(place.node), place.token)
            self._why = "the other nodes are still connected to an earlier attempt of this node"
            raise _Again
        if leads:
            sees = sealed["problem"] is not None or self._sees(sealed["probe"], sealed["tokens"][0])
            store.set(_seen(place.node), "yes" if sees else "no")
        until = time.monotonic() + ANSWER_SECONDS
        while not store.check(["begin"]):
            if time.monotonic() > until:
                raise RuntimeError(f"node 0 did not start within {ANSWER_SECONDS} s")
            self._pause(POLL_SECONDS)
        begin = json.loads(store.get("begin"))
        if begin["problem"] is not None:
            if leads:
                store.set(_read(place.node), "")
            raise BadRequest(begin["problem"])
        token: str = begin["token"]
        return token

    def _publish_card(self, store: dist.TCPStore) -> None:
        place = self._place
        key, own, known = _node(place.node), self._card().text, ""
        for _ in range(3):  # an earlier attempt's card may be replaced under our eyes
            found = store.compare_set(key, known, own).decode()
            if found == own:
                return
            other = parse_card(found)
            # A restarted machine has another boot id, and its earlier attempt's card.
            if other.boot_id != boot_id() and other.host != socket.gethostname():
                raise BadRequest(
                    f"rendezvous.node_rank = {place.node}: {other.host} and "
                    f"{socket.gethostname()} both have this number; give each node a "
                    f"different one, from 0 to {place.nodes - 1}"
                )
            known = found
        raise _Again

    def _sees(self, probe: str, token: str) -> bool:
        with suppress(OSError):
            return (self._place.directory / probe).read_text("utf-8") == token
        return False

    def _card(self) -> NodeCard:
        place = self._place
        return own_card(place.token, self._rank.node_ranks, place.job)

    def _pause(self, seconds: float, why: Callable[[], str] | None = None) -> None:
        """Wait for `seconds`.

        If the time for the rendezvous is over, `why` returns the reason for the error message.

        Raises:
            StoppedBeforeStart: a stop was requested.
            MachineNotReady: the time for the rendezvous is over.
        """
        self._place.waits()
        if self._place.is_stopped():
            raise StoppedBeforeStart("stopped on request before all nodes had joined")
        if time.monotonic() > self._until:
            said = why() if why else f"node 0 does not answer ({self._why})"
            raise MachineNotReady(
                f"{said} at {self._place.address} within {duration_text(int(self._place.seconds))}"
                "; this node tries again later; check that the job runs on the other nodes, and "
                "that they can reach this port"
            )
        time.sleep(seconds)


def _check_address_free(place: MeetingPlace) -> None:
    """Raise MachineNotReady if another program listens at the address.

    Otherwise torch would treat this program as its own store.
    """
    with suppress(OSError), socket.create_connection((place.host, place.port), 1.0):
        raise MachineNotReady(
            f"rendezvous.address = {place.address}: another program listens there; end it, or set "
            "another port on all nodes"
        )


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]


def _node(node: int) -> str:
    return f"node/{node}"


def _seen(node: int) -> str:
    return f"seen/{node}"


def _left_key(node: int) -> str:
    return f"left/{node}"


def _read(node: int) -> str:
    return f"read/{node}"


_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True)
class NodeCard:
    """The data that a node writes into the store to introduce itself.

    `job` has a digest of each table that all nodes must have in common.
    """

    token: str = ""
    host: str = ""
    boot_id: str = ""
    ranks: int = 0
    zerotools: str = "of an unknown version"
    torch: str = "of an unknown version"
    time: float = 0.0
    job: Mapping[str, str] = field(default_factory=dict)

    @property
    def text(self) -> str:
        """The card as JSON text."""
        return json.dumps(asdict(self), sort_keys=True)


def parse_card(text: str) -> NodeCard:
    """Return the card that `text` describes.

    Another version of zerotools may have written the card. A missing value gets a default text,
    which is then reported as a difference.
    """
    tree = json.loads(text)
    known = {each.name for each in fields(NodeCard)}
    return NodeCard(**{name: value for name, value in tree.items() if name in known})


def own_card(token: str, ranks: int, job: Mapping[str, str]) -> NodeCard:
    """Return the data that this node writes into the store to introduce itself: the token of its
    attempt, the number of its ranks, its digests of the job's tables, its name, its boot id and its
    versions.
    """
    versions = (zerotools.__version__, str(torch.__version__))
    return NodeCard(
        token, socket.gethostname(), boot_id(), ranks, *versions, time.time(), dict(job)
    )


def first_difference(cards: Mapping[int, NodeCard]) -> str | None:
    """Return a sentence that names the first difference between the cards of the nodes; None if the
    cards match.
    """
    first = cards[0]
    for node, card in sorted(cards.items()):
        who = f"node {node} ({card.host})"
        for name, what in (("zerotools", "zerotools"), ("torch", "torch")):
            ours, theirs = getattr(first, name), getattr(card, name)
            if ours != theirs:
                return (
                    f"{who} has {what} {theirs}, but node 0 ({first.host}) has {ours}; install the "
                    "same version on all nodes"
                )
        if card.ranks != first.ranks:
            return (
                f"{who} has {count_text(card.ranks, 'rank')}, but node 0 ({first.host}) has "
                f"{first.ranks}; set gpus or ranks to the same number on all nodes"
            )
        differing = [name for name in first.job if card.job.get(name) != first.job[name]]
        if differing:
            tables = ", ".join(differing)
            return (
                f"{who} has a different job than node 0 ({first.host}): {tables} differ; submit "
                "the "
                "same job file on all nodes"
            )
    return None


def boot_id() -> str:
    """Return the boot id of this machine.

    Two nodes with the same boot id are on the same machine.
    """
    try:
        return _BOOT_ID.read_text("ascii").strip()
    except OSError:
        return socket.gethostname()
