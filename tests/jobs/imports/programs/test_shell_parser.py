"""The words of shell scripts: bash is asked what it passes on."""

import random
import re
import subprocess
from pathlib import Path

import pytest

from zerotools.core.errors import BadRequest
from zerotools.jobs.imports.programs.shell_parser import Command, commands_of


def words(text: str) -> list[list[str]]:
    return [[word.text for word in found.words] for found in commands_of(text, "run.sh")]


def the_one(text: str, program: str = "launch") -> Command:
    (found,) = (c for c in commands_of(text, "run.sh") if c.words and c.words[0].text == program)
    return found


def by_bash(text: str) -> list[str]:
    """What bash passes to `launch`."""
    script = f"launch() {{ printf '%s\\0' \"$@\" >&3; }}\nexec 3>&1 >/dev/null\n{text}\nwait\n"
    done = subprocess.run(["bash", "-c", script], capture_output=True, check=False, text=True)
    return done.stdout.split("\0")[:-1]


SCRIPTS = [
    "launch a 'b c' \"d e\" f\\ g ''",
    'launch --x "a\\"b" \'$HOME\' "it\'s"',
    "A=1\nB='x y'\nlaunch $A ${A}2 \"$B\" ${C:-left} ${A:-no} pre$A.post",
    "launch a \\\n  b \\\n  c # the end\necho d",
    "export P=/data; launch --path=$P/x > log.txt 2>&1",
    "launch a b | cat",
    "launch a && echo b || echo c",
    "(launch in brackets)",
    "X=1 Y=2 launch a=b --c=$",
    "launch one#two '#three' \\#four # five",
    "cat <<EOF\nlaunch not\nEOF\nlaunch yes",
    "V=4\nread -r -d '' A <<EOF\n--x \"a\" \\\n  --y $V\nEOF\nlaunch $A end",
    'A=$1\nif [ "$A" == "" ]; then\n  A=7\nfi\nlaunch $A ${2:-8}',
    'if [[ -z "${NONE}" ]]; then A=1; else A=2; fi\nlaunch $A',
    'if [ -n "$NONE" ]; then\n  launch no\nelse\n  launch yes\nfi',
    'A=3\nif [[ "$1" != "slurm" ]]; then\n  launch $A\nfi',
    "N=2\nlaunch $(expr 16 / $N) `expr $N + 1`",
    'A="\n --a 1 \\\n --b 2\n"\nlaunch $A',
    "launch 1>out 2> err <in a &> both b >> more",
    'launch "multi\nline"',
    "launch a;launch_not b",
    'launch "a\\\nb" c\\\nd',
    "launch 'quote'\"d\"un",
    "ARGS='--lr 1e-4  --bf16'; launch $ARGS \"$ARGS\" x$ARGS.y",
    "E=''; launch a $E \"$E\" ''$E b",
    "A=' p q '; launch x${A}y $A",
]


@pytest.mark.parametrize("text", SCRIPTS)
def test_words_are_those_that_bash_passes_on(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "in").write_text("")
    assert [word.text for word in the_one(text).words[1:]] == by_bash(text)


PIECES = ["a", "1e-4", " ", "  ", "'x y'", '"p q"', "\\\n", "\\ z", "$V", '"$V"', "''", "=", "--k"]


@pytest.mark.parametrize("seed", range(40))
def test_random_lines_are_read_as_bash_reads_them(seed: int) -> None:
    draw = random.Random(seed)
    line = "V=val\nlaunch " + "".join(draw.choices(PIECES, k=12)) + " end"
    found = the_one(line)
    if not any(word.problem for word in found.words):
        assert [word.text for word in found.words[1:]] == by_bash(line)


@pytest.mark.parametrize("text", ["launch 'a", 'launch "a\nb', "launch `a", "launch $(a", "x ${a"])
def test_a_quote_that_is_not_closed_is_refused(text: str) -> None:
    with pytest.raises(BadRequest, match=r"run\.sh:1: the quote .* is not closed"):
        words(text)


@pytest.mark.parametrize(
    ("word", "problem"),
    [
        ("$(nproc)", "a value only when a shell runs it"),
        ("`nproc`", "a value only when a shell runs it"),
        ("$UNSET", r"\$UNSET is not set in the text"),
        ("$1", "an argument of the script"),
        ("${A%x}", "too complex to compute here"),
    ],
)
def test_what_only_a_shell_knows_is_a_problem_of_its_word(word: str, problem: str) -> None:
    good, bad = the_one(f"launch good {word}").words[1:]
    assert good.problem == ""
    assert re.search(problem, bad.problem)


def test_words_know_their_lines() -> None:
    found = the_one("\n# a\nlaunch a \\\n  b \\\n  c\n")
    assert [word.line for word in found.words] == [3, 3, 4, 5]


@pytest.mark.parametrize("after", [" # why", "  ", "\t# why"])
def test_a_backslash_before_a_blank_ends_the_command(after: str) -> None:
    first, second = commands_of(f"launch a \\{after}\n  --b 1", "run.sh")
    assert [w.text for w in first.words] == ["launch", "a"]
    assert [w.text for w in second.words] == ["--b", "1"]
