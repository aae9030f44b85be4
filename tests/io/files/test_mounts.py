"""Which mount a path lies on, told from the kernel's table alone."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from zerotools.io.files.mounts import MountPoint, mounts_of, read_mounts

TABLE = """\
22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
30 22 0:40 / /data rw shared:2 - nfs4 server:/data rw
31 30 0:41 / /data/with\\040space rw - fuse.sshfs host: rw
32 22 8:1 /private /tmp rw - ext4 /dev/sda1 rw
33 22 0:50 / /net rw - autofs /etc/auto rw
34 33 0:51 / /net/lab rw - nfs4 lab:/ rw
not a line of it
"""


@dataclass
class Job:
    output_dir: str
    data: tuple[Path, ...]
    name: str | None = None


def table(tmp_path: Path) -> list[MountPoint]:
    file = tmp_path / "mountinfo"
    file.write_text(TABLE)
    return read_mounts(file)


def test_the_longest_mount_above_each_path_is_found(tmp_path: Path) -> None:
    mounted = table(tmp_path)
    assert [point.path for point in mounted if point.kind == "fuse.sshfs"] == ["/data/with space"]
    assert mounts_of("/data/with space/x", mounted) == {"/data/with space"}
    assert mounts_of(["/data/a/../b", "relative", 7, {"key": "/database"}], mounted) == {"/data"}
    job = Job("/data/out", (Path("/data/with space/train"), Path("/home/me")), "/")
    assert mounts_of((job, "{}"), mounted) == {"/data", "/data/with space"}


def test_the_root_and_its_own_directories_are_no_mount(tmp_path: Path) -> None:
    assert mounts_of(["/", "/home", "/tmp/out", "/\0"], table(tmp_path)) == set()


def test_what_comes_and_goes_by_itself_stands_for_the_directory_that_it_comes_in(
    tmp_path: Path,
) -> None:
    assert mounts_of("/net/lab/out", table(tmp_path)) == {"/net"}


def test_the_table_of_this_machine_can_be_read(tmp_path: Path) -> None:
    assert "/" in {point.path for point in read_mounts()}
    assert read_mounts(tmp_path / "none") == []
