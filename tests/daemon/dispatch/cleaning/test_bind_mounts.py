"""A path has one name, wherever its file system is mounted."""

from __future__ import annotations

import pytest

from zerotoolsd.dispatch.cleaning.bind_mounts import Mounts

MOUNTS = b"""\
1 0 8:1 / / rw - ext4 /dev/a rw
2 1 8:2 / /data rw - ext4 /dev/b rw
3 1 8:2 /homes/anna /home/anna rw - ext4 /dev/b rw
4 1 8:2 /homes /srv/my\\040homes rw - ext4 /dev/b rw
5 1 0:9 / /mnt rw - tmpfs none rw
6 1 8:3 /sub /only rw - ext4 /dev/c rw
7 1 8:1 / /rootfs rw - ext4 /dev/a rw
"""


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("/etc/x", "/etc/x"),
        ("/rootfs/etc/x", "/etc/x"),
        ("/rootfs", "/"),
        ("/data/homes/anna/x", "/data/homes/anna/x"),
        ("/home/anna/x", "/data/homes/anna/x"),
        ("/home/anna", "/data/homes/anna"),
        ("/home/annabel", "/home/annabel"),
        ("/srv/my homes/anna/x", "/data/homes/anna/x"),
        ("/mnt/x", "/mnt/x"),
        ("/only/x", "/only/x"),
        ("relative", "relative"),
        ("--from=/data/x", "--from=/data/x"),
    ],
)
def test_a_path_is_named_by_the_first_mount(path: str, name: str) -> None:
    assert Mounts(MOUNTS).first_name(path) == name


def test_where_nothing_is_known_a_path_stays_as_it_is() -> None:
    assert Mounts(b"").first_name("/home/anna/x") == "/home/anna/x"
    assert Mounts().first_name("/") == "/"
