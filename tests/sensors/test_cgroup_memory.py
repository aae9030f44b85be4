from __future__ import annotations

from pathlib import Path

import pytest

from zerotools.sensors.cgroup_memory import headroom_bytes


def group(path: Path, most: str, used: str, inactive: str = "0") -> None:
    path.mkdir(parents=True, exist_ok=True)
    (path / "memory.max").write_text(f"{most}\n")
    (path / "memory.current").write_text(f"{used}\n")
    (path / "memory.stat").write_text(f"anon 5\ninactive_file {inactive}\nslab 3\n")


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    path = tmp_path / "cgroup"
    path.write_text("4:memory:/old\n0::/a.slice/b.service\n")
    return path


def test_the_tightest_of_all_groups_counts(tmp_path: Path, proc: Path) -> None:
    root = tmp_path / "fs"
    group(root / "a.slice/b.service", "max", "70")
    assert headroom_bytes(proc, root) is None
    group(root / "a.slice", "100", "90", inactive="30")
    assert headroom_bytes(proc, root) == 40
    group(root / "a.slice/b.service", "80", "70", inactive="5")
    assert headroom_bytes(proc, root) == 15
    group(root, "200", "500")
    assert headroom_bytes(proc, root) == 0


@pytest.mark.parametrize("said", ["", "4:memory:/only\n", "0:/broken\n"])
def test_without_cgroup_v2_nothing_is_known(tmp_path: Path, said: str) -> None:
    (tmp_path / "cgroup").write_text(said)
    assert headroom_bytes(tmp_path / "cgroup", tmp_path / "fs") is None
    assert headroom_bytes(tmp_path / "none", tmp_path / "fs") is None


def test_what_cannot_be_read_is_no_limit(tmp_path: Path, proc: Path) -> None:
    root = tmp_path / "fs"
    group(root / "a.slice", "x", "90")
    (root / "a.slice/b.service").mkdir()
    (root / "a.slice/b.service/memory.max").write_text("100")
    assert headroom_bytes(proc, root) is None
    group(root / "a.slice", "100", "90", inactive="none")
    assert headroom_bytes(proc, root) == 10


def test_of_this_process_it_is_a_number_or_nothing() -> None:
    found = headroom_bytes()
    assert found is None or found > 0
