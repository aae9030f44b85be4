"""Record the main job for the front page of the documentation: docs/images/main-job.svg.

    python -m scripts.make_recording

A real daemon trains a small Llama with ZeRO-3 on two ranks, and the commands of README's quick
start are typed. It takes about a minute.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.daemon import JOB, daemon
from scripts.terminal_pictures import Recording, record, write

ROOT = Path(__file__).resolve().parent.parent
PICTURE = ROOT / "docs" / "images" / "main-job.svg"
SIZE = (84, 26)
COMMANDS = (
    "zerotools submit --follow job.toml",
    "zerotools inspect runs/tiny",
    "zerotools consolidate runs/tiny model",
    "zerotools reshard runs/tiny for-one --world-size 1",
)


def main() -> None:
    recording = Recording(*SIZE)
    with TemporaryDirectory() as directory:
        work = Path(directory)
        corpus = subprocess.check_output([sys.executable, "-m", "pydoc", "builtins"])
        (work / "corpus.txt").write_bytes(corpus)
        job = {
            **JOB,
            "output_dir": "runs/tiny",
            "zero": {"stage": 3},
            "data": {"text": ["corpus.txt"], "sequence_length": 64},
            "train": {"steps": 40, "batch_size": 12, "learning_rate": 1e-3},
            "checkpoint": {"every": 20},
        }
        (work / "job.toml").write_text(json.dumps(job))  # JSON is accepted, too
        os.environ["PYTHONPATH"] = f"{ROOT}:{ROOT / 'daemon'}"
        with daemon(work / "state"):
            os.chdir(work)
            environment = {"ZEROTOOLS_SOCKET": str(work / "state" / "api.sock")}
            for command in COMMANDS:
                recording.type(command)
                recording.play(record(shlex.split(command), environment, SIZE))
            os.chdir(ROOT)
    write(PICTURE, recording.svg("zerotools trains, inspects, merges and reshards a checkpoint"))


if __name__ == "__main__":
    main()
