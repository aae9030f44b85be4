from __future__ import annotations

from zerotools.io.files.sources import lasting_inodes

MOUNTS = """\
22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
40 22 0:50 / /mnt/far rw shared:3 - fuse.sshfs me@far:/data rw,user_id=0
41 22 0:51 / /mnt/nfs rw - nfs4 server:/data rw
42 22 0:52 / /mnt/fuse\\040ext4 rw - cifs //server/data rw""".splitlines()


def test_inode_numbers_count_where_a_file_system_keeps_them() -> None:
    assert lasting_inodes(MOUNTS, "8:1")
    assert lasting_inodes(MOUNTS, "0:51")
    assert lasting_inodes(MOUNTS, "0:99")  # btrfs: not the number that mountinfo has
    assert not lasting_inodes(MOUNTS, "0:50")
    assert not lasting_inodes(MOUNTS, "0:52")
