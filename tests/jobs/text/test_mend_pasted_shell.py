"""Shell scripts as they come off web pages: what is mended, and what stays as it is."""

from __future__ import annotations

import pytest

from zerotools.jobs.text.mend_pasted_shell import mend_shell

KEPT = """#!/bin/bash
# a comment with --an-option \\
LR=1e-4  # the rate
deepspeed main.py --name "a # b" \\
    --lr $LR  # the last one
echo "a\\
b" 'c – d'
sort <in.txt >out.txt
torchrun x.py \\
  > log.txt
"""


def test_a_sound_script_stays_as_it_is() -> None:
    sound = KEPT.replace("\u2013", "-")
    assert mend_shell(sound).text == sound
    assert mend_shell(sound).notes == []


@pytest.mark.parametrize(
    ("broken", "mended"),
    [
        ("d main.py \\ # data\n  --lr 1\n", "d main.py \\\n  --lr 1\n"),
        ("d main.py \\  \n  --lr 1\n", "d main.py \\\n  --lr 1\n"),
        (
            "d --num_gpus=4 #\u5f20--port 1 main.py \\\n  --lr 1",
            "d --num_gpus=4 --port 1 main.py \\\n  --lr 1",
        ),
        ("d --num_gpus=4 # four main.py \\\n  --lr 1", "d --num_gpus=4 main.py \\\n  --lr 1"),
        ("d main.py # data \\\n  --lr 1", "d main.py \\\n  --lr 1"),
        ("d main.py\n  --lr 1", "d main.py \\\n  --lr 1"),
        ("d main.py # x\n\n# y\n  --lr 1", "d main.py \\\n\\\n\\\n  --lr 1"),
        ("d main.py --lr\u00a01e-4\u3000--bf16", "d main.py --lr 1e-4 --bf16"),
        ("d main.py \u2014lr 1 \u2013bf16 --eps 1e\u22125", "d main.py --lr 1 --bf16 --eps 1e-5"),
        ("d main.py --name \u201ca b\u201d", 'd main.py --name "a b"'),
        ("```bash\n$ d main.py\n```", "\nd main.py\n"),
        ("1. d main.py \\\n2.   --lr 1 \\\n3.   --bf16", "d main.py \\\n  --lr 1 \\\n  --bf16"),
        ("me@host:~/x$ d main.py", "d main.py"),
        ("1. cd x\n2. $ d main.py", "cd x\nd main.py"),
        ("$ d main.py \\\n> --lr 1", "d main.py \\\n--lr 1"),
        (
            "d main.py --port=<your_port> --m \u2039a b\u203a",
            "d main.py --port=$your_port --m $a_b",
        ),
    ],
)
def test_what_pages_do_to_scripts_is_mended(broken: str, mended: str) -> None:
    found = mend_shell(broken)
    assert found.text == mended
    assert found.notes
    assert broken.count("\n") == mended.count("\n")


def test_each_mend_has_its_line() -> None:
    found = mend_shell("a \\ \n  --b \\ \n  --c\n\nd\u00a0e\n")
    assert found.lines_of("x.sh") == (
        "x.sh:1: the end of the line behind a \\",
        "x.sh:2: the end of the line behind a \\",
        "x.sh:5: a non-breaking or other odd space",
    )
