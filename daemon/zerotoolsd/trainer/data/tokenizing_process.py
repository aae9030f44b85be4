"""A process that tokenises for a rank: `python -P tokenizing_process.py`.

It reads pickles from standard input. The first pickle is (maker, arguments, first batch). The call
`maker(*arguments)` returns the function that processes batches. The first batch is processed
without a reply: every process gets the same first batch, so all begin in the same state. Each later
pickle is a batch, for which the process writes (True, result) or (False, exception) to standard
output. The process ends at the end of its input.

It does not import torch, which would take longer than the rest of the start.
"""

from __future__ import annotations

import importlib.util
import os
import pickle
import signal
import sys
from pathlib import Path
from typing import Any


def main() -> None:
    """Read batches from standard input, process them and write the results, until the input
    ends.
    """
    for number in (signal.SIGINT, signal.SIGTERM):  # the rank ends this process
        signal.signal(number, signal.SIG_IGN)
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # output of a library is not a reply
    sys.modules["torch"] = None  # type: ignore[assignment]
    _make_importable()
    batches = sys.stdin.buffer
    make, arguments, first = pickle.load(batches)
    do = make(*arguments)
    _answer(do, first)
    while True:
        try:
            batch = pickle.load(batches)
        except EOFError:
            return
        pickle.dump(_answer(do, batch), answers, pickle.HIGHEST_PROTOCOL)
        answers.flush()


def _answer(do: Any, batch: Any) -> tuple[bool, Any]:
    try:
        return True, do(batch)
    except Exception as error:  # raised again by the reader of the result
        return False, error


def _make_importable() -> None:
    entry = Path(__file__).resolve().parents[1] / "entry.py"
    spec = importlib.util.spec_from_file_location("entry", entry)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.make_importable()


if __name__ == "__main__":
    main()
