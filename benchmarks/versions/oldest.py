"""Train and export with the libraries of this environment: a tiny job of each kind on the CPU.

    python -m benchmarks.versions.oldest [KIND...]

A real daemon runs each job. `zerotools consolidate` exports its last checkpoint, transformers loads
the export, and its loss on the trained text must be that of a model that has learnt something.
Prints one row of a table per job. Exit status 1: one of them failed. `scripts/oldest` makes the
environment.
"""

from __future__ import annotations

import json
import math
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.daemon import daemon
from zerotools.jobs.client.daemon_client import DaemonClient
from zerotools.jobs.jobfile.parse import job_from_dict
from zerotools.jobs.states import TERMINAL

LIBRARIES = ("torch", "transformers", "deepspeed", "peft", "bitsandbytes")
DEADLINE_SECONDS = 600.0
UNTRAINED, LEARNT = math.log(256), 0.3
"""The loss of a model that takes all bytes for equally likely, and how much less is asked for."""
MODEL = {
    "model_type": "llama",
    "vocab_size": 256,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
}
LORA = {"rank": 8, "target_modules": ["q_proj", "v_proj", "down_proj"]}


def torch_job(base: Path) -> dict[str, Any]:
    """Stage 3 on two ranks."""
    return {"ranks": 2, "zero": {"stage": 3}, "model": {"config": MODEL}}


def deepspeed_job(base: Path) -> dict[str, Any]:
    """DeepSpeed's stage 2 on two ranks, with torch's AdamW: nothing is compiled."""
    optimizer = {"type": "AdamW", "params": {"lr": 1e-2, "torch_adam": True}}
    config = {"zero_optimization": {"stage": 2}, "optimizer": optimizer}
    return {
        "engine": "deepspeed",
        "ranks": 2,
        "zero": {"stage": 2},
        "deepspeed": {"config": config},
        "model": {"config": MODEL},
    }


def lora_job(base: Path) -> dict[str, Any]:
    """Adapters on a model of a directory, at stage 3 on two ranks."""
    return {"ranks": 2, "zero": {"stage": 3}, "model": {"path": str(base)}, "lora": LORA}


def qlora_job(base: Path) -> dict[str, Any]:
    """The same beside weights in 4 bits."""
    return {**lora_job(base), "lora": {**LORA, "frozen_precision": "nf4"}}


KINDS: dict[str, Callable[[Path], dict[str, Any]]] = {
    "torch": torch_job,
    "deepspeed": deepspeed_job,
    "lora": lora_job,
    "qlora": qlora_job,
}


def main() -> None:
    """Run the jobs of the kinds that were asked for, or of all."""
    kinds = sys.argv[1:] or list(KINDS)
    if unknown := [kind for kind in kinds if kind not in KINDS]:
        sys.exit(f"there is no kind {unknown[0]!r}; choose of {', '.join(KINDS)}")
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    has_failed = False
    with TemporaryDirectory() as directory:
        work = Path(directory)
        text = work / "text.txt"
        text.write_text("the quick brown fox jumps over the lazy dog\n" * 200)
        base = work / "base"
        _save_base(base)
        with daemon(work / "state", "[limits]\ncpu_ranks = 2\n") as (_, client):
            for kind in kinds:
                why = _try(client, work / kind, KINDS[kind](base), text)
                has_failed |= why is not None
                row = [kind, *(_version(library) for library in LIBRARIES), why or "yes"]
                print(f"| {' | '.join(row)} |", flush=True)
    sys.exit(has_failed)


def _save_base(base: Path) -> None:
    """A model with random weights, for adapters."""
    code = (
        "import sys, torch, transformers; torch.manual_seed(0)\n"
        f"config = transformers.AutoConfig.for_model(**{MODEL!r})\n"
        "transformers.AutoModelForCausalLM.from_config(config).save_pretrained(sys.argv[1])"
    )
    subprocess.run([sys.executable, "-c", code, str(base)], check=True)


def _try(client: DaemonClient, work: Path, job: dict[str, Any], text: Path) -> str | None:
    """Train, export and load: None, or what went wrong."""
    work.mkdir()
    tree = {
        "device": "cpu",
        "seed": 7,
        "output_dir": str(work / "run"),
        "data": {"text": [str(text)], "tokenizer": "bytes", "sequence_length": 32},
        "train": {"steps": 30, "batch_size": 8, "learning_rate": 1e-2},
        **job,
    }
    number = int(client.submit(job_from_dict(tree, source="job"))["id"])
    deadline = time.monotonic() + DEADLINE_SECONDS
    while (state := client.job(number))["state"] not in TERMINAL:
        if time.monotonic() > deadline:
            client.cancel(number)
            return f"the job was still {state['state']} after {DEADLINE_SECONDS:.0f} s"
        time.sleep(0.2)
    if state["state"] != "succeeded":
        return f"the job ended {state['state']}: {_line(json.dumps(state.get('reason')))}"
    command = [sys.executable, "-m", "zerotools", "consolidate", "--verify"]
    done = subprocess.run(
        [*command, str(work / "run"), str(work / "exported")], capture_output=True, text=True
    )
    if done.returncode:
        return f"consolidate ended with status {done.returncode}: {_line(done.stderr)}"
    loaded = subprocess.run(
        [sys.executable, "-c", _LOSS, str(work / "exported"), str(text)],
        capture_output=True,
        text=True,
    )
    if loaded.returncode:
        return f"from_pretrained failed: {_line(loaded.stderr)}"
    loss = float(loaded.stdout.split()[-1])
    return None if loss < UNTRAINED - LEARNT else f"the exported model has a loss of {loss:.2f}"


_LOSS = """
import sys, torch
from transformers import AutoModelForCausalLM
model, unread = AutoModelForCausalLM.from_pretrained(sys.argv[1], output_loading_info=True)
assert not unread["missing_keys"] and not unread["unexpected_keys"], unread
tokens = torch.tensor([list(open(sys.argv[2], "rb").read(512))])
with torch.no_grad():
    print(model.float()(tokens, labels=tokens).loss.item())
"""


def _line(said: str) -> str:
    """The last line of what a program said, short enough for a table."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    return re.sub(r"[|]", "/", lines[-1])[:300] if lines else "nothing was said"


def _version(library: str) -> str:
    try:
        return version(library)
    except PackageNotFoundError:
        return "-"


if __name__ == "__main__":
    main()
