"""A job file and configs as the tests of importers want them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from zerotools.jobs.imports.combine_configs import Imported, JobFile, import_configs
from zerotools.jobs.imports.reading.import_report import report_lines
from zerotools.jobs.jobfile.parse import read_tree
from zerotools.jobs.text.config_document import Document
from zerotools.jobs.text.json_parser import parse_json
from zerotools.jobs.text.yaml_parser import parse_yaml

CONFIGS = Path(__file__).parent / "configs"
BASE = Path("/base")

JOB = """
gpus = 2

[model.config]
model_type = "llama"
hidden_size = 64

[data]
text = ["a.txt"]

[train]
steps = 1000
"""

TRAINERS = {
    "optimizer": "adamw",
    "learning_rate": 5e-5,
    "schedule": "linear",
    "warmup_steps": 0,
    "weight_decay": 0.0,
    "betas": [0.9, 0.999],
    "eps": 1e-8,
}
"""What Hugging Face's Trainer trains with where nobody says."""


def a_job(text: str = JOB) -> JobFile:
    """A job file called job.toml in `BASE`."""
    return JobFile(read_tree(text, source="job.toml"), "job.toml", BASE)


def ds(name: str, job: JobFile | None = None) -> Imported:
    """What the DeepSpeed fixture `name` makes of `job`."""
    return ds_text((CONFIGS / name).read_text(), job)


def ds_text(text: str, job: JobFile | None = None) -> Imported:
    """What a DeepSpeed config makes of `job`."""
    return import_configs(job, deepspeed=parse_json(text, source="ds.json"))


def said(imported: Imported) -> str:
    """Why the job cannot be run; fails where it can."""
    assert imported.problem is not None, "nothing was refused"
    return str(imported.problem)


def outcomes(imported: Imported) -> dict[str, str]:
    """Outcome by key."""
    return {row.key: row.outcome.value for row in imported.findings.rows}


def autos(imported: Imported) -> dict[str, Any]:
    """What each "auto" became, by key."""
    return {auto.key: auto.value for auto in imported.findings.autos}


def accelerate(name: str, job: JobFile | None = None) -> Imported:
    """What the accelerate fixture `name` makes of `job`."""
    return accelerate_text((CONFIGS / name).read_text(), job)


def accelerate_text(text: str, job: JobFile | None = None) -> Imported:
    """What an accelerate config makes of `job`; files that it names are fixtures, or empty."""
    document = parse_yaml(text, source="acc.yaml")
    return import_configs(job, accelerate=document, load=_fixture)


def _fixture(name: str) -> Document:
    path = CONFIGS / name
    return parse_json(path.read_text() if path.exists() else "{}", source=name)


def report(imported: Imported) -> str:
    """The report for people, without the ends of its lines."""
    return " ".join(line.lstrip("# ") for line in report_lines(imported.findings))
