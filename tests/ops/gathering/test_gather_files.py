from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from tests.golden_files import DEEPSPEED, TORCH
from tests.io.ssh.double import SshDouble
from tests.ops.gathering.nodes import content, gathered, made_node, planned, split
from zerotools.core.errors import BadFile, BadRequest, HostUnreachable
from zerotools.formats import read
from zerotools.io.ssh.remote_shell import BLOCK, OpenShells
from zerotools.ops.gathering.gather_files import LARGE, fetch_and_finish
from zerotools.ops.inspection.inspect import inspect

ZERO3 = DEEPSPEED / "z3-bf16-w4" / "checkpoint"
DCP = TORCH / "fsdp2-dcp-w3" / "checkpoint"
TWO_NODES = {
    "n1": ("*_rank_[01]_*", "latest"),
    "n2": ("*_rank_[23]_*", "latest"),
}


@pytest.fixture
def halves(ssh: SshDouble, tmp_path: Path) -> list[str]:
    return split(ZERO3, tmp_path, TWO_NODES)


def journal(out: Path) -> dict[str, dict[str, object]]:
    lines = (out.with_name("out.partial") / ".zerotools-journal").read_text().splitlines()
    return {line["file"]: line["noted"] for line in map(json.loads, lines[1:])}


@pytest.mark.parametrize("fast", [False, True])
def test_deepspeed_ranks_of_two_nodes(halves: list[str], tmp_path: Path, fast: bool) -> None:
    out = tmp_path / "out"
    counts: list[int] = []
    done = gathered(halves, out, fast=fast, on_bytes=counts.append)
    assert done.has_name
    assert content(out) == content(ZERO3)
    assert sum(counts) == done.plan.bytes_to_fetch
    assert not inspect(read(out)).problems
    assert not out.with_name("out.partial").exists()
    old = next(ZERO3.rglob("*_rank_2_*optim*"))
    assert abs((out / old.relative_to(ZERO3)).stat().st_mtime - old.stat().st_mtime) < 0.001


def test_dcp_of_three_ranks(ssh: SshDouble, tmp_path: Path) -> None:
    shares = {"n1": ("__0_*", ".metadata"), "n2": ("__1_*",), "n3": ("__2_*",)}
    sources = split(DCP, tmp_path, shares)
    here = sources[2].partition(":")[2]
    out = tmp_path / "out"
    assert gathered([*sources[:2], here], out).has_name
    assert content(out) == content(DCP)
    assert not inspect(read(out)).problems


@pytest.mark.parametrize("fast", [False, True])
def test_a_rank_that_no_node_has(halves: list[str], tmp_path: Path, fast: bool) -> None:
    lost = next((tmp_path / "n2").rglob("*_rank_3_*optim*"))
    aside = tmp_path / "n3" / "run" / "global_step2" / lost.name
    aside.parent.mkdir(parents=True)
    shutil.move(lost, aside)
    out = tmp_path / "out"
    done = gathered(halves, out, fast=fast)
    assert not done.has_name
    assert done.checked.missing == [f"global_step2/{lost.name}"]
    assert {
        source: len(have) for source, have in done.holders_of_alike(done.checked.missing[0]).items()
    } == {halves[0]: 2, halves[1]: 1}
    assert len(content(out.with_name("out.partial"))) == len(content(ZERO3))  # and the journal
    # The node that has it is enough now: the others' files are here.
    third = f"n3:{tmp_path / 'n3' / 'run'}"
    again = gathered([third], out, fast=fast)
    assert [*again.plan.fetches] == [third]
    assert again.has_name
    assert content(out) == content(ZERO3)


def test_a_dcp_without_the_node_of_its_metadata(ssh: SshDouble, tmp_path: Path) -> None:
    sources = split(DCP, tmp_path, {"n1": ("__0_*", "__1_*"), "n2": ("__2_*",)})
    plan = planned(sources, tmp_path / "out")
    assert plan.doubt is not None  # before anything is fetched
    assert f"{tmp_path / 'out'} has .distcp files but no .metadata" in plan.doubt
    done = gathered(sources, tmp_path / "out")
    assert not done.has_name
    assert "no .metadata" in done.checked.findings[0]


def test_every_tag_is_looked_at(ssh: SshDouble, tmp_path: Path) -> None:
    tags = DEEPSPEED / "z2-bf16-w2-tags" / "checkpoint"
    sources = split(
        tags, tmp_path, {"n1": ("*_rank_0_*", "mp_rank_*", "latest"), "n2": ("*_rank_1_*",)}
    )
    older = min(each.name for each in tags.iterdir() if each.is_dir())
    lost = next((tmp_path / "n2" / "run" / older).iterdir())
    lost.rename(tmp_path / "aside")
    out = tmp_path / "out"
    assert gathered(sources, out).checked.missing == [f"{older}/{lost.name}"]
    (tmp_path / "aside").rename(lost)
    done = gathered(sources, out)
    assert done.has_name
    assert len(done.checked.verifications) == len([*tags.glob("*/")]) > 1
    assert content(out) == content(tags)


def test_force_makes_it_for_salvage(halves: list[str], tmp_path: Path) -> None:
    next((tmp_path / "n2").rglob("*_rank_3_*optim*")).unlink()
    out = tmp_path / "out"
    done = gathered(halves, out, force=True)
    assert (done.has_name, done.checked.is_whole) == (True, False)
    assert len(content(out)) == len(content(ZERO3)) - 1


def test_what_a_bad_disk_changed_is_found(halves: list[str], tmp_path: Path) -> None:
    file = next((tmp_path / "n1").rglob("*_rank_1_*optim*"))
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
    assert not gathered(halves, tmp_path / "out").checked.is_whole


def test_a_node_that_goes_away_keeps_what_the_others_sent(
    ssh: SshDouble, halves: list[str], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    plan = planned(halves, out)
    ssh.fails("ssh: connect to host n2 port 22: No route to host\n", "n2")
    with pytest.raises(HostUnreachable, match=r"^n2 cannot be reached by ssh: .*No route to host"):
        fetch_and_finish(plan, _unseen, shells=OpenShells(), at_once=2)
    assert {each["source"] for each in journal(out).values()} == {halves[0]}
    assert set(journal(out)) == {each.name for each in plan.fetches[halves[0]]}


def _unseen(_: Path) -> object:
    raise AssertionError("nothing is looked at before all is here")


def test_a_large_file_goes_on_from_where_it_was_cut(ssh: SshDouble, tmp_path: Path) -> None:
    data = os.urandom(LARGE) + os.urandom(2 * BLOCK + 17)
    source = made_node(tmp_path, "n1", {"big.bin": data, "a": b"a"})
    out = tmp_path / "out"
    ssh.breaks("n1", 5 * BLOCK)
    with pytest.raises(HostUnreachable, match=r"^n1 went away: Connection to n1 closed by remote"):
        gathered([source], out)
    assert journal(out)["big.bin"]["sha256"] is None
    ssh.breaks("n1", None)
    before = len(ssh.calls)
    counts: list[int] = []
    done = gathered([source], out, force=True, on_bytes=counts.append)
    assert done.has_name
    assert (out / "big.bin").read_bytes() == data
    assert sum(counts) == done.plan.bytes_to_fetch == len(data)  # what was there counts, too
    assert max(counts) == 4 * BLOCK  # the fifth was not whole
    assert len(ssh.calls) > before


def test_a_file_that_was_begun_and_has_changed_is_fetched_anew(
    ssh: SshDouble, tmp_path: Path
) -> None:
    source = made_node(tmp_path, "n1", {"big.bin": bytes(LARGE + 5)})
    ssh.breaks("n1", 5 * BLOCK)
    out = tmp_path / "out"
    with pytest.raises(HostUnreachable):
        gathered([source], out)
    ssh.breaks("n1", None)
    data = os.urandom(LARGE + 6)
    made_node(tmp_path, "n1", {"big.bin": data})
    assert gathered([source], out, force=True).has_name
    assert (out / "big.bin").read_bytes() == data


def test_what_arrives_otherwise_is_thrown_away(ssh: SshDouble, tmp_path: Path) -> None:
    """A block that an earlier run left is not what the node has: the digest tells."""
    data = os.urandom(LARGE + 5)
    source = made_node(tmp_path, "n1", {"big.bin": data})
    ssh.breaks("n1", 5 * BLOCK)
    out = tmp_path / "out"
    with pytest.raises(HostUnreachable):
        gathered([source], out)
    ssh.breaks("n1", None)
    with (tmp_path / "out.partial" / "big.bin").open("r+b") as file:
        file.write(b"wrong")
    said = r"big.bin has SHA-256 .* on its node, but .* after the transfer"
    with pytest.raises(BadFile, match=said):
        gathered([source], out)
    assert not (tmp_path / "out.partial" / "big.bin").exists()
    assert gathered([source], out, force=True).has_name
    assert (out / "big.bin").read_bytes() == data


@pytest.mark.parametrize(
    ("change", "how"),
    [
        ("printf more >>{}", "it had 5 bytes and has 9"),
        ("printf ab >{}", "it had 5 bytes and has 2"),
        ("touch -d '2001-01-01' {}", "it was written again, with the same size"),
        ("rm {}", "it is gone"),
    ],
)
@pytest.mark.parametrize("when", ["head", "printf"])
def test_a_source_that_changes_is_named(
    ssh: SshDouble, tmp_path: Path, change: str, how: str, when: str
) -> None:
    """While its files are sent (`head` is in that script), or after they were."""
    source = made_node(tmp_path, "n1", {"s/a.pt": b"12345", "s/b.pt": b"b"})
    plan = planned([source], tmp_path / "out")
    ssh.first("n1", when, change.format(tmp_path / "n1" / "run" / "s" / "a.pt"))
    with pytest.raises(BadFile, match=rf"^{source}: s/a.pt changed while it was gathered: {how}; "):
        fetch_and_finish(plan, _unseen, shells=OpenShells(), at_once=1, fast=True)


def test_a_file_that_cannot_be_read_there(ssh: SshDouble, tmp_path: Path) -> None:
    """Its program says why; a user who may read everything is not asked."""
    head = tmp_path / "head"
    head.write_text("#!/bin/sh\necho 'head: ./a.pt: Input/output error' >&2\nexit 1\n")
    head.chmod(0o755)
    ssh.has_programs("n1", [*(Path("/bin") / each for each in ("sh", "find", "sha256sum")), head])
    source = made_node(tmp_path, "n1", {"s/a.pt": b"1" * 999})
    with pytest.raises(
        BadFile, match=r"999 bytes of s/a.pt were expected, but not all arrived: head: .*Input/"
    ):
        gathered([source], tmp_path / "out")


def test_two_runs_do_not_share_a_directory(halves: list[str], tmp_path: Path) -> None:
    out = tmp_path / "out"
    plan = planned(halves, out)
    assert not gathered(halves[:1], out).has_name
    with pytest.raises(BadRequest, match=r"another run has changed .*out.partial since"):
        fetch_and_finish(plan, _unseen, shells=OpenShells(), at_once=2)


def test_what_no_source_has_any_more_is_not_in_the_output(
    halves: list[str], tmp_path: Path
) -> None:
    extra = tmp_path / "n1" / "run" / "extra" / "old.txt"
    extra.parent.mkdir()
    extra.write_text("old")
    out = tmp_path / "out"
    assert not gathered(halves[:1], out).has_name
    shutil.rmtree(extra.parent)
    assert gathered(halves, out).has_name
    assert content(out) == content(ZERO3)
