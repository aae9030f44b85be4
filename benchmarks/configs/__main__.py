"""Configs of public repositories through `zerotools import`, and DeepSpeed's own word on each.

    python -m benchmarks.configs DIRECTORY... [--seen FILE]

Every .json (.conf, .txt) is read as a DeepSpeed JSON, every .yaml as an accelerate YAML: strictly,
and where that fails with --lenient. Each is imported twice, for engine torch and for engine
deepspeed. What is accepted for engine deepspeed is given to `deepspeed.DeepSpeedConfig` and what
the engine torch would train with is held against what Hugging Face's Trainer and DeepSpeed make of
the file (`benchmarks.configs.judge`, in a child). `--seen` writes every row as JSON.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from zerotools.core.errors import Unsupported, ZerotoolsError
from zerotools.jobs.imports.combine import Imported, JobFile, import_configs
from zerotools.jobs.tables.spec import JobSpec
from zerotools.jobs.text.document import Document, read_text
from zerotools.jobs.text.json_text import parse_json
from zerotools.jobs.text.toml_text import to_toml
from zerotools.jobs.text.yaml_text import parse_yaml

JSONS, YAMLS = (".json", ".conf", ".txt"), (".yaml", ".yml")
HIDDEN = 64


@dataclass
class Row:
    """One file and engine; `outcome` is accepted, refused, unsupported or unreadable."""

    file: str
    kind: str
    engine: str
    lenient: bool = False
    outcome: str = "unreadable"
    why: str = ""
    given: dict[str, Any] | None = None
    effective: dict[str, Any] | None = None
    tree: dict[str, Any] | None = None
    judged: str = ""
    wrong: list[str] = field(default_factory=list)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directories", nargs="+", type=Path)
    parser.add_argument("--seen", type=Path)
    asked = parser.parse_args()
    files = sorted(p for d in asked.directories for p in d.rglob("*") if p.suffix in JSONS + YAMLS)
    rows = [row for path in files for row in _rows(path)]
    _judge(rows)
    if asked.seen is not None:
        asked.seen.write_text(json.dumps([asdict(row) for row in rows], indent=1))
    sys.stdout.write("".join(f"{line}\n" for line in _table(rows)))


def _rows(path: Path) -> Iterator[Row]:
    kind = "accelerate" if path.suffix in YAMLS else "deepspeed"
    for engine in ("torch", "deepspeed"):
        row = Row(path.name, kind, engine)
        try:
            document, row.lenient = _read(path, kind)
        except ZerotoolsError as error:
            row.why = str(error).splitlines()[0]
        else:
            row.tree = dict(document.tree)
            _import(row, document, path)
        yield row


def _read(path: Path, kind: str) -> tuple[Document, bool]:
    text = read_text(path, "config")
    parse: Any = parse_yaml if kind == "accelerate" else parse_json
    with contextlib.suppress(ZerotoolsError):
        return parse(text, source=path.name), False
    return parse(text, source=path.name, lenient=True), True


def _import(row: Row, document: Document, path: Path) -> None:
    imported = _imported(row, document, path, {})
    if imported.problem is not None and "train.batch_size" in str(imported.problem):
        imported = _imported(row, document, path, {"batch_size": 64})
    if imported.problem is not None:
        unsupported = isinstance(imported.problem, Unsupported)
        row.outcome = "unsupported" if unsupported else "refused"
        row.why = str(imported.problem)
    elif imported.spec is not None:
        try:
            to_toml(imported.tree, imported.origins)
        except ZerotoolsError as error:
            row.outcome, row.why = "refused", str(error)
            return
        row.outcome, row.given = "accepted", imported.deepspeed
        row.effective = _effective(imported.spec)


def _imported(row: Row, document: Document, path: Path, train: dict[str, Any]) -> Imported:
    tree = {
        "engine": row.engine,
        "model": {"config": {"model_type": "llama", "hidden_size": HIDDEN}},
        "data": {"text": ["a.txt"]},
        "train": {"steps": 100_000, **train},
    }
    job = JobFile(tree, "job.toml", path.parent.absolute())
    if row.kind == "deepspeed":
        return import_configs(job, deepspeed=document)
    return import_configs(job, accelerate=document, load=lambda name: Document(name, {}, {}))


def _effective(spec: JobSpec) -> dict[str, Any]:
    train = spec.train
    return {
        "world_size": spec.world_size,
        "batch_size": train.batch_size,
        "micro_batch_size": train.micro_batch_size or train.batch_size // spec.world_size,
        "steps": train.steps,
        "stage": spec.zero.stage,
        "precision": train.precision,
        "max_grad_norm": train.max_grad_norm,
        "optimizer": train.optimizer,
        "learning_rate": train.learning_rate,
        "weight_decay": train.weight_decay,
        "betas": list(train.betas),
        "eps": train.eps,
        "momentum": train.momentum,
        "schedule": train.schedule,
        "warmup_steps": train.warmup_steps,
        "offload.optimizer": spec.offload.optimizer,
        "offload.params": spec.offload.params,
        **{f"fp16.{name}": value for name, value in asdict(spec.fp16).items()},
    }


def _judge(rows: list[Row]) -> None:
    asked = [asdict(row) for row in rows if row.outcome == "accepted"]
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.configs.judge"],
        input=json.dumps(asked),
        env={**os.environ, "DS_ACCELERATOR": "cpu"},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(done.stderr[-3000:])
    said = iter(json.loads(done.stdout.rsplit("\n", 1)[1]))
    for row in rows:
        if row.outcome == "accepted":
            verdict = next(said)
            row.judged, row.wrong = verdict["judged"], verdict["wrong"]


def _table(rows: list[Row]) -> Iterator[str]:
    yield "| config | engine | files | accepted | by --lenient alone | refused | not supported |"
    yield "|---|---|---|---|---|---|---|"
    kinds = sorted({(row.kind, row.engine) for row in rows})
    for kind, engine in kinds:
        some = [row for row in rows if (row.kind, row.engine) == (kind, engine)]
        count = Counter(row.outcome for row in some)
        lenient = sum(row.lenient and row.outcome == "accepted" for row in some)
        refused = count["refused"] + count["unreadable"]
        yield (
            f"| {kind} | {engine} | {len(some)} | {count['accepted']} | {lenient} | {refused} | "
            f"{count['unsupported']} |"
        )
    for engine in ("torch", "deepspeed"):
        taken = [row for row in rows if row.engine == engine and row.outcome == "accepted"]
        wrong = [row for row in taken if row.wrong]
        fatal = [row for row in taken if row.judged]
        yield ""
        yield f"Engine {engine}: {len(wrong)} of {len(taken)} accepted ones train other values" + (
            f"; {len(fatal)} are rejected by DeepSpeedConfig." if engine == "deepspeed" else "."
        )
        yield from (f"- {row.file}: {'; '.join(row.wrong)}" for row in wrong)
        yield from (f"- {row.file}: {row.judged}" for row in fatal)
    yield "\nRefused or not supported:\n"
    for row in rows:
        if row.outcome != "accepted":
            yield f"- {row.file} ({row.engine}): {' / '.join(row.why.splitlines())}"


if __name__ == "__main__":
    main()
