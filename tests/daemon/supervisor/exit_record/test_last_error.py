"""Which line of a program's output says why it failed."""

from __future__ import annotations

import pytest

from zerotoolsd.supervisor.exit_record.last_error import LONGEST, error_line, last_error

OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
LOST = "RuntimeError: [..] Connection closed by peer [127.0.0.1]:4711"


def traceback(error: str, rank: str = "") -> str:
    lines = ("Traceback (most recent call last):", '  File "a.py", line 3, in f', "    g()", error)
    return "\n".join(rank + line for line in lines)


TORCHRUN = f"""{traceback(OOM)}
step 1
W1128 17:56:04 1725 torch/distributed/elastic/multiprocessing/api.py:1028] Sending closing signal
E1128 17:56:04 1725 torch/distributed/elastic/multiprocessing/api.py:1002] failed (exitcode: 1)
{traceback("torch.distributed.elastic.multiprocessing.errors.ChildFailedError: ")}
============================================================
train.py FAILED
Root Cause (first observed failure):
  rank      : 0 (local_rank: 0)
  exitcode  : 1 (pid: 2447)
  error_file: <N/A>
  traceback : To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html
"""
DEEPSPEED = f"""{traceback(OOM, "[rank0]: ")}
{traceback(LOST, "[rank1]: ")}
[2026-11-28 17:56:04,480] [INFO] [launch.py:316:sigkill_handler] Killing subprocess 4711
[2026-11-28 17:56:05,480] [ERROR] [launch.py:322:sigkill_handler] ['python', 'a.py'] exits with 1
"""
GROUP = """  + Exception Group Traceback (most recent call last):
  |   File "a.py", line 1, in <module>
  |     raise ExceptionGroup("many", [ValueError("a"), TypeError("b")])
  | ExceptionGroup: many (2 sub-exceptions)
  +-+---------------- 1 ----------------
    | Traceback (most recent call last):
    |   File "a.py", line 1, in f
    | ValueError: a
    +---------------- 2 ----------------
    | TypeError: b
    +------------------------------------
"""
CHAINED_GROUP = f"{GROUP}\nDuring handling ..:\n\n{traceback(OOM)}"
ACCELERATE = traceback(OOM) + "\n" + traceback("subprocess.CalledProcessError: Command '..' failed")


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (traceback(OOM), OOM),
        (f"{traceback('KeyError: 1')}\n\nDuring handling ..:\n\n{traceback(OOM)}\nbye", OOM),
        (TORCHRUN, OOM),
        (DEEPSPEED, OOM),
        (ACCELERATE, OOM),
        (f"{traceback(OOM)}\n{traceback(LOST)}", OOM),
        (traceback(LOST), LOST),
        (
            "step 1\nbash: line 1: trian: command not found",
            "bash: line 1: trian: command not found",
        ),
        ("\x1b[31mfatal: \x1b[1mno data\x1b[0m\n", "fatal: no data"),
        ("loss 3.2\rloss 3.1\rError: the disk is gone\n", "Error: the disk is gone"),
        (GROUP, "ExceptionGroup: many (2 sub-exceptions)"),
        (CHAINED_GROUP, OOM),
        (f"{traceback('torch.distributed.elastic.x.ChildFailedError: ')}\nxx", None),
        ("train.py: error: argument --lr: invalid float value", None),
        ("loss 3.2\nloss 3.1\nall saved", None),
        ("", None),
    ],
)
def test_the_line_with_the_reason_is_found(text: str, line: str | None) -> None:
    found = error_line(text)
    assert found == (text if text.startswith("train.py") else line)


def test_a_line_is_bounded_and_no_output_takes_long() -> None:
    assert len(error_line("Error: " + "x" * 60_000) or "") == LONGEST
    for text in (
        "[" * 65_536,
        "a." * 32_768,
        "\x1b[" * 32_768,
        f"{traceback('')}\n{'a.' * 30_000}",
    ):
        error_line(text)


def test_the_last_error_is_the_programs_own() -> None:
    launcher = traceback("torch.distributed.elastic.multiprocessing.errors.ChildFailedError: ")
    assert last_error(f"{traceback('ValueError: mine')}\n{launcher}") == "ValueError: mine"
    assert last_error("all is well") is None
