"""gather from Python."""

from __future__ import annotations

from pathlib import Path

import pytest

import zerotools
from tests.golden_files import DEEPSPEED
from tests.io.ssh.double import SshDouble
from tests.ops.gathering.nodes import content, split

ZERO3 = DEEPSPEED / "z3-bf16-w4" / "checkpoint"
NODES = {"n1": ("*_rank_[01]_*", "latest"), "n2": ("*_rank_[23]_*", "latest")}


@pytest.fixture
def sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    SshDouble(tmp_path, monkeypatch)
    return split(ZERO3, tmp_path, NODES)


def test_shards_come_together(sources: list[str], tmp_path: Path) -> None:
    out = tmp_path / "out"
    planned = zerotools.gather(sources, out, dry_run=True)
    assert (planned.dry_run, planned.has_name, planned.is_whole) == (True, False, None)
    assert planned.bytes_to_fetch == planned.bytes_of_all == sum(planned.files.values())
    told: list[zerotools.ProgressUpdate] = []
    done = zerotools.gather(sources, str(out), progress=told.append)
    assert (done.has_name, done.is_whole, done.findings) == (True, True, ())
    assert content(out) == content(ZERO3)
    assert list(done.sources.values()) == [5, 4]
    stages = list(dict.fromkeys(each.stage for each in told))
    assert stages == ["compare", "gather", "verify"]
    ends = {each.stage: each for each in told}
    assert all(each.done == each.total for each in ends.values())


def test_what_is_not_whole_raises_and_is_kept(sources: list[str], tmp_path: Path) -> None:
    out = tmp_path / "out"
    with pytest.raises(zerotools.BadFile, match="is incomplete"):
        zerotools.gather(sources[0], out)
    assert not out.exists()
    forced = zerotools.gather(sources[:1], out, force=True)
    assert (forced.has_name, forced.is_whole) == (True, False)
    assert forced.findings


def test_sources_are_paths_too(sources: list[str], tmp_path: Path) -> None:
    named = [Path(each) for each in sources]
    assert zerotools.gather(named, tmp_path / "out").is_whole
    with pytest.raises(zerotools.BadFile, match="is incomplete"):
        zerotools.gather(named[0], tmp_path / "half")
    with pytest.raises(zerotools.BadRequest, match="there are no sources to gather"):
        zerotools.gather([], tmp_path / "none")
