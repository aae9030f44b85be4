"""systemd: the units are valid, and the daemon speaks its protocol."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import socket
import stat
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from harness.started import run
from zerotoolsd.app import systemd
from zerotoolsd.app.systemd import UNITS, unit_text

ROOT = Path(__file__).parents[3]
SYSTEMD = ROOT / "systemd"
PAGE = ROOT / "docs/how-to/install-as-a-service.md"


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
@pytest.mark.parametrize(
    ("manager", "unit"),
    [
        ("--system", "zerotoolsd.service"),
        ("--system", "zerotoolsd.socket"),
        ("--user", "user/zerotoolsd.service"),
        ("--user", "user/zerotoolsd.socket"),
    ],
)
def test_systemd_accepts_the_units(tmp_path: Path, manager: str, unit: str) -> None:
    done = run(
        ["systemd-analyze", manager, "verify", str(SYSTEMD / unit)],
        env={**os.environ, "XDG_RUNTIME_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stderr.strip()) == (0, "")


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
@pytest.mark.parametrize(("drop_ins", "most"), [((), 5.0), (("jobs-as-children",), 8.0)])
def test_the_unit_is_closed_as_far_as_its_page_says(
    tmp_path: Path, drop_ins: tuple[str, ...], most: float
) -> None:
    unit = tmp_path / "zerotoolsd.service"
    texts = [(SYSTEMD / "zerotoolsd.service").read_text()]
    texts += [(SYSTEMD / f"drop-ins/{name}.conf").read_text() for name in drop_ins]
    unit.write_text("\n".join(texts))
    done = run(
        ["systemd-analyze", "security", "--offline=true", "--no-pager", str(unit)],
        stdout=subprocess.PIPE,
        text=True,
        timeout=60,
    )
    score = float(re.findall(r"Overall exposure level.*: ([0-9.]+)", done.stdout)[0])
    assert score <= most
    said = map(
        float,
        re.findall(
            r"systemd-analyze security zerotoolsd` (?:then )?says ([0-9.]+\d)",
            PAGE.read_text("utf-8"),
        ),
    )
    # Each version of systemd counts a little differently.
    assert any(abs(score - number) <= 0.5 for number in said)


@pytest.mark.parametrize(
    "unit", sorted(SYSTEMD.rglob("*.service")) + sorted(SYSTEMD.rglob("*.conf"))
)
def test_no_unit_hides_gpus(unit: Path) -> None:
    # ProtectClock implies DeviceAllow=char-rtc before version 253, which forbids all other devices.
    keys = {line.partition("=")[0] for line in unit.read_text().splitlines()}
    assert not keys & {"DeviceAllow", "DevicePolicy", "PrivateDevices", "ProtectClock"}


@pytest.mark.skipif(os.geteuid() != 0, reason="makes accounts and directories below a root")
@pytest.mark.skipif(shutil.which("systemd-sysusers") is None, reason="needs systemd-sysusers")
def test_the_account_and_the_directory_are_made(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    (tmp_path / "var/lib/zerotools").mkdir(parents=True, mode=0o755)
    for command in (
        [
            "systemd-sysusers",
            f"--root={tmp_path}",
            str(SYSTEMD / "sysusers.d/zerotools.conf"),
        ],
        [
            "systemd-tmpfiles",
            "--create",
            f"--root={tmp_path}",
            str(SYSTEMD / "tmpfiles.d/zerotools.conf"),
        ],
    ):
        run(command, check=True, capture_output=True, timeout=60)
    assert "zerotools:x:" in (tmp_path / "etc/passwd").read_text()
    assert stat.S_IMODE((tmp_path / "var/lib/zerotools").stat().st_mode) == 0o711


def test_readiness_is_told(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(10)
        assert systemd.notify("READY=1", {"NOTIFY_SOCKET": str(tmp_path / "notify")})
        assert manager.recv(100) == b"READY=1"


def test_without_a_manager_nothing_is_told(tmp_path: Path) -> None:
    assert not systemd.notify("READY=1", {})
    assert not systemd.notify("READY=1", {"NOTIFY_SOCKET": str(tmp_path / "gone")})


def test_the_watchdog_is_fed_twice_per_interval() -> None:
    assert systemd.watchdog_seconds({"WATCHDOG_USEC": "30000000"}) == 15
    assert systemd.watchdog_seconds({}) is None
    assert systemd.watchdog_seconds({"WATCHDOG_USEC": "1", "WATCHDOG_PID": "1"}) is None


def test_a_daemon_whose_loop_hangs_gives_no_sign_of_life(tmp_path: Path) -> None:
    states = [True, False, True]

    async def feed() -> None:
        environment = {"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "2"}
        with suppress(IndexError):  # there is no further state
            await systemd.feed_watchdog(lambda: states.pop(0), environment)

    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.setblocking(False)
        asyncio.run(feed())
        assert [manager.recv(100) for _ in range(2)] == [b"WATCHDOG=1"] * 2
        with pytest.raises(BlockingIOError):
            manager.recv(100)


def test_only_a_socket_meant_for_this_process_is_taken() -> None:
    own = str(os.getpid())
    for told in (
        {},
        {"LISTEN_PID": "1", "LISTEN_FDS": "1"},
        {"LISTEN_PID": own, "LISTEN_FDS": "0"},
    ):
        environment = {**told, "LISTEN_FDNAMES": "x", "PATH": "/bin"}
        assert systemd.inherited_socket(environment) is None
        assert environment == {"PATH": "/bin"}


@pytest.mark.parametrize(
    ("make", "answer"),
    [
        ("s = socket.socket(socket.AF_UNIX); s.bind(path); s.listen()", "taken"),
        ("s = socket.socket(socket.AF_UNIX); s.bind(path)", "a socket that the daemon cannot use"),
        ("s = socket.socket(); s.listen()", "for TCP, set [api] listen"),
        ("s = open(path, 'w')", "exactly one ListenStream="),
    ],
)
def test_a_socket_that_is_handed_over_must_be_one_to_answer_at(
    tmp_path: Path, make: str, answer: str
) -> None:
    # In a process of its own: descriptor 3 is a fixed place.
    program = f"""
import os, socket
path = {str(tmp_path / "s")!r}
{make}
os.dup2(s.fileno(), 3)
from zerotools.core.errors import BadRequest
from zerotoolsd.app import systemd
try:
    found = systemd.inherited_socket({{"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": "1"}})
    print("taken", found.fileno(), os.get_inheritable(3))
except BadRequest as error:
    print(error)
"""
    done = run([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, timeout=30)
    assert answer in done.stdout
    if answer == "taken":
        assert done.stdout.split() == ["taken", "3", "False"]


def test_every_file_for_systemd_has_a_name() -> None:
    files = {path.relative_to(SYSTEMD).as_posix() for path in SYSTEMD.rglob("*") if path.is_file()}
    assert files == {*UNITS.values()}
    for name, file in UNITS.items():
        assert unit_text(name) == (SYSTEMD / file).read_text()


@pytest.mark.parametrize(
    ("program", "written"),
    [
        ("/opt/zerotools/bin/zerotoolsd", "/opt/zerotools/bin/zerotoolsd"),
        ("/home/a b/bin/zerotoolsd", '"/home/a b/bin/zerotoolsd"'),
        ("/a%b/$c/zerotoolsd", "/a%%b/$c/zerotoolsd"),
        ("/a%b/$c d/zerotoolsd", '"/a%%b/$c d/zerotoolsd"'),
        ('/a"\\b/zerotoolsd', '/usr/bin/env "/a\\"\\\\b/zerotoolsd"'),
        ("/o'b/$c/zerotoolsd", '/usr/bin/env "/o\'b/$$c/zerotoolsd"'),
    ],
)
def test_a_unit_starts_the_program_that_printed_it(program: str, written: str) -> None:
    lines = unit_text("user", program).splitlines()
    assert f"ExecStart={written}" in lines
    system = unit_text("system", program)
    assert f"ExecStart={written} --state-dir /var/lib/zerotools" in system.splitlines()
    assert "/usr/bin/env zerotoolsd" not in system


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
@pytest.mark.parametrize("folder", ["plain", "a b", "$c", "${c} d", "50%d", "é;#", "o'b", 'a"\\b'])
def test_systemd_finds_the_program(folder: str, tmp_path: Path) -> None:
    program = tmp_path / folder / "zerotoolsd"
    program.parent.mkdir()
    program.symlink_to("/bin/true")
    unit = tmp_path / "zerotools-of-a-test.service"
    start = next(
        line
        for line in unit_text("user", str(program)).splitlines()
        if line.startswith("ExecStart=")
    )
    unit.write_text(f"[Service]\n{start}\n", "utf-8")
    command = ["systemd-analyze", "verify", unit]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert [line for line in done.stderr.splitlines() if unit.name in line] == []
