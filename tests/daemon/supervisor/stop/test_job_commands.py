"""Stops of many job commands: shells, launchers and build programs that would go on after a stop.

`FEW` differ in their kind and run always, the rest with the full matrices. A command of which a
program is not installed is skipped.
"""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.daemon.supervisor.stop.test_stop_programs import stop
from tests.matrices import FULL

SAVED = ("train begins", "train asked", "train saved")
ORPHANS = "nohup sh -c '$T train; $T publish' >/dev/null 2>&1 &) ; sleep 1000; $T publish"
"""The rank itself handles no SIGTERM: it is the rank that was killed."""
PYTHON = f'{sys.executable} -IS -c "{{}}"; $T publish'
ASYNCIO = """import asyncio
async def main():
 for name in ('train', 'publish'):
  process = await asyncio.create_subprocess_exec('./program', name); await process.wait()
asyncio.run(main())"""
THREAD = """import threading, subprocess
def work():
 for name in ('train', 'publish'): subprocess.run(['./program', name])
thread = threading.Thread(target=work); thread.start(); thread.join()"""
EXECUTOR = """from concurrent.futures import ThreadPoolExecutor
import subprocess
with ThreadPoolExecutor(1) as pool:
 list(pool.map(lambda name: subprocess.run(['./program', name]), ('train', 'publish')))"""
POOL = """import multiprocessing, subprocess
def work(name): subprocess.run(['./program', name])
multiprocessing.set_start_method('fork')
with multiprocessing.Pool(1) as pool: pool.map(work, ('train', 'publish'))"""
SYSTEM = "import os; os.system('./program train'); os.system('./program publish')"

FEW = (
    ("bash", "setsid sh -c '$T train; $T publish' & wait; $T publish"),
    ("bash", f"({ORPHANS}"),
    ("bash", "(exec $T train); $T publish"),
    ("bash", "x=$($T train); $T publish"),
    ("bash", PYTHON.format(ASYNCIO)),
    ("bash", "set -m; $T train & fg; $T publish"),
    ("bash", r"printf 'train\npublish\n' | while read x; do $T $x </dev/null; done"),
    ("bash", "trap '$T publish' ERR; set -E; $T train 1; $T publish"),
)
REST = (
    ("sh", "set -e; $T train; $T publish"),
    ("sh -e", "$T train; $T publish"),
    ("dash", "setsid $T train & wait; $T publish"),
    ("bash", "setsid $T train & wait; $T publish"),
    ("bash", f"(setsid {ORPHANS}"),
    ("zsh", "(exec $T train); $T publish"),
    ("zsh", "$T train && $T publish"),
    ("zsh", "f() { $T train; $T publish }; f; f"),
    ("zsh", "$T train | cat; $T publish"),
    ("zsh", "repeat 3 $T train"),
    ("zsh", "for x (train publish) $T $x"),
    ("zsh", "TRAPEXIT() { echo bye }; $T train; $T publish"),
    ("bash", "eval '$T train; $T publish'"),
    ("bash", r"printf '$T train\n$T publish\n' > s.sh; . ./s.sh; $T publish"),
    ("bash", "until $T train 3; do :; done; $T publish"),
    ("bash", "while ! $T train 1; do :; done"),
    ("bash", "nice $T train; $T publish"),
    ("bash", "stdbuf -oL $T train; $T publish"),
    ("bash", "flock lock $T train; $T publish"),
    ("bash", "flock lock sh -c '$T train; $T publish'; $T publish"),
    ("bash", PYTHON.format(SYSTEM)),
    ("bash", PYTHON.format(THREAD)),
    ("bash", PYTHON.format(EXECUTOR)),
    ("bash", PYTHON.format(POOL)),
    ("bash", 'perl -e \'system("./program train"); system("./program publish")\'; $T publish'),
    (
        "bash",
        'perl -e \'for (qw(train publish)) { my $p = fork; if (!$p) { exec "./program", $_ } '
        "waitpid($p, 0) }'; $T publish",
    ),
    ("bash", "mapfile x < <($T train); $T publish"),
    ("bash", "x=`$T train` && $T publish"),
    ("bash", "$T train & pid=$!; wait $pid; $T publish"),
    ("bash", "$T train & sleep 500 & wait -n; $T publish"),
    ("bash", "set -m; ($T train; $T publish) & wait; $T publish"),
    ("bash", "timeout --foreground 100 $T train; $T publish"),
    ("bash", "timeout -k 5 100 sh -c '$T train; $T publish'; $T publish"),
    ("bash", r"printf 'train\npublish\n' > l; while read x; do $T $x </dev/null; done < l"),
    ("bash", r"printf 'train\npublish\n' | xargs -I{} sh -c '$T {}'"),
    ("bash", "env -i ./program train; $T publish"),
    ("bash", "time $T train; time $T publish"),
    ("bash", "{ $T train; $T publish; } 2>&1 | tee -a log; $T publish"),
    ("bash", "{ $T train; $T publish; } > >(tee log) 2> >(tee err >&2); $T publish"),
    ("bash", "set -o pipefail; $T train 2>&1 | ts 2>/dev/null | cat; $T publish"),
    ("bash", "exec 3>&1; $T train | tee /dev/fd/3; $T publish"),
    ("bash", "trap '' TERM INT HUP; ( trap - TERM; $T train; $T publish ); $T publish"),
    ("bash", "trap '$T publish' CHLD; set -m; $T train; $T publish"),
    ("bash", "just --justfile justfile all && $T publish"),
    ("bash", "just --justfile justfile par && $T publish"),
    ("bash", "make -j2 -f Mk rec; $T publish"),
    ("bash", "make -k -j2 -f Mk two; $T publish"),
    ("bash", "snakemake -c2 -s Snakefile"),
    ("bash", "snakemake -c2 -s Snakefile --quiet || true; $T publish"),
    ("bash", "snakemake -c1 -s Snakefile -k; $T publish"),
    ("bash", "bash -ic '$T train; $T publish' ; $T publish"),
    ("bash", "bash -lc '$T train; $T publish' ; $T publish"),
    (
        "bash",
        'sh -c \'sh -c "sh -c \\"$T train; $T publish\\"; $T publish"; $T publish\'; $T publish',
    ),
    ("bash", "start() { $T train; }; start || start || $T publish; $T publish"),
    ("bash", "case x in x) $T train;; esac; $T publish"),
    ("bash", "if $T train; then $T publish; else $T other; fi"),
    ("bash", '[ -n "$($T train)" ] && $T publish; $T publish'),
    ("bash", "select_() { $T train; return $?; }; select_ && $T publish"),
)
PROGRAMS = ("flock", "just", "make", "perl", "setsid", "snakemake", "stdbuf", "timeout")
JUSTFILE = """
all: a b
\t./program publish
a:
\t./program train
b:
\t./program publish
[parallel]
par: a c
\t./program publish
c:
\tsleep 0.1
"""
MAKEFILE = """
rec:
\t$(MAKE) -f Mk one
\t./program publish
one:
\t./program train
\t./program publish
two: one three
three:
\tfalse
\t./program publish
"""
SNAKEFILE = """
rule all:
    input: "c.txt"
rule a:
    output: "a.txt"
    shell: "./program train; touch a.txt; ./program publish"
rule b:
    input: "a.txt"
    output: "c.txt"
    shell: "./program publish; touch c.txt"
"""


def commands() -> list[Any]:
    found = []
    for number, (shell, script) in enumerate((*FEW, *REST) if FULL else FEW):
        needs = [each for each in PROGRAMS if re.search(rf"(?<!\w){each} ", script)]
        lacks = [each for each in (shell.split()[0], *needs) if shutil.which(each) is None]
        skip = pytest.mark.skipif(bool(lacks), reason=f"{', '.join(lacks)} is not installed")
        reason = ("pause", "preempt", "limit")[number % 3]
        found.append(pytest.param(shell, script, reason, marks=skip, id=f"{number}-{shell}"))
    return found


@pytest.mark.parametrize(("shell", "script", "reason"), commands())
def test_p12_no_command_goes_on_after_a_stop(
    tmp_path: Path, shell: str, script: str, reason: str
) -> None:
    (tmp_path / "justfile").write_text(JUSTFILE)
    (tmp_path / "Mk").write_text(MAKEFILE)
    (tmp_path / "Snakefile").write_text(SNAKEFILE)
    found = stop(tmp_path, script, "train", shell=shell, reason=reason)
    assert found.notes == SAVED, script
    assert found.record["outcome"] == ("killed" if ORPHANS in script else "stopped"), script


@pytest.mark.skipif(not FULL, reason="its kind is in test_stop_programs")
def test_a_trap_for_exit_may_run_programs_that_are_asked_in_turn(tmp_path: Path) -> None:
    found = stop(tmp_path, "trap '$T publish' EXIT; $T train", "train")
    after = tuple(each.replace("train", "publish") for each in SAVED)
    assert found.notes == (*SAVED, *after)
    assert found.record["outcome"] == "stopped"
