"""Fill the missing keys of a job file that an estimate has begun with usual values.

A value that the user did not give gets a default for a first run, such as one epoch or a usual
learning rate. The model and the data get placeholder paths, which the user has to replace.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from zerotools.core.errors import BadRequest
from zerotools.jobs.imports.combine_configs import JobFile
from zerotools.jobs.memory_estimates.find_models_and_data import CONFIG, EXAMPLES, PREFERENCES, TEXT
from zerotools.jobs.memory_estimates.training_estimate import Estimate, model_table_of
from zerotools.jobs.text.toml_writer import to_toml
from zerotools.ops.estimate.fit_search import Way
from zerotools.ops.estimate.parameter_shapes import read_shape

GIB = 1 << 30
FIRST_RATE = 3e-4
RATES = {
    (TEXT, False): 2e-5,
    (EXAMPLES, False): 1e-5,
    (PREFERENCES, False): 5e-7,
    (TEXT, True): 1e-4,
    (EXAMPLES, True): 1e-4,
    (PREFERENCES, True): 5e-6,
}
"""(Kind of data, whether adapters are trained) -> a usual learning rate."""
LEARNED = {
    TEXT: "continued pretraining",
    EXAMPLES: "fine-tuning",
    PREFERENCES: "preference optimisation (DPO)",
}
_SAID = {TEXT: "plain text", EXAMPLES: "prompts and answers", PREFERENCES: "pairs of answers"}
_TOKENIZERS = ("tokenizer.json", "tokenizer.model", "tokenizer_config.json", "vocab.json")
CHECKPOINTS_OF_A_RUN = 500
MODEL_PLACE, DATA_PLACE = "model", "data/*.txt"
"""The placeholder paths of model and data in a job file."""


_ANY_DATA = "/"
_MANY_STEPS = 2**62
WITH_CONFIG = ("batch", "sequence_length", "engine", "activation_checkpointing")
"""The only options that may be given together with the config of another launcher, because such a
config never has their values.
"""


@dataclass(frozen=True)
class WholeJob:
    """A complete job file as a tree, and comments on its keys.

    `places` maps each key that has a placeholder path (model and data) to this path.
    """

    tree: Mapping[str, Any]
    comments: Mapping[str, str]
    places: Mapping[str, str]
    exported: str | None = None
    """The path of a checkpoint that the user gave as the model: it must be exported first.

    None for other models.
    """

    @property
    def text(self) -> str:
        """The text of the job file."""
        return to_toml(self.tree, self.comments)

    @property
    def advice(self) -> Iterator[str]:
        """Yield a sentence for each thing that the user has to set before the job is submitted."""
        if self.places:
            named = " and ".join(f"{key} (now {place})" for key, place in self.places.items())
            there = "this path" if len(self.places) == 1 else "these paths"
            yield f"set {named}, or copy your files to {there}"
        if self.exported is not None:
            checkpoint = shlex.quote(self.exported)
            yield f"zerotools consolidate {checkpoint} {MODEL_PLACE} exports its weights there"
        if isinstance(self.tree["model"].get("config"), Mapping):
            yield (
                "the run starts from random weights; to train the weights of a model, replace "
                '[model.config] by [model] with path = "DIR"'
            )


def whole_job(found: Estimate, way: Way, tree: Mapping[str, Any]) -> WholeJob:
    """Return the job file in `tree` with all other keys that a job needs.

    `tree` has the keys for the configuration `way`; `found` is the estimate.
    """
    tree = {
        name: dict(table) if isinstance(table, Mapping) else table for name, table in tree.items()
    }
    places = {}
    exported = _exported(tree.get("model", {}))
    if "model" not in tree or exported is not None:
        tree.pop("model", None)
        tree = {"model": {"path": MODEL_PLACE}, **tree}
        places["model.path"] = MODEL_PLACE
    data, train, model = tree.setdefault("data", {}), tree["train"], tree["model"]
    kind = next((kind for kind in (EXAMPLES, PREFERENCES) if kind in data), TEXT)
    if not data.keys() & {*LEARNED, "tokens"}:
        tree["data"] = data = {TEXT: [DATA_PLACE], **data}
        places[f"data.{TEXT}"] = DATA_PLACE
    if TEXT in data and "tokenizer" not in data:
        data["tokenizer"] = tokenizer_of(model) or "bytes"
    if not train.keys() & {"steps", "epochs"}:
        train["epochs"] = 1.0
    rate = RATES[kind, "lora" in tree] if "path" in model else FIRST_RATE
    train.setdefault("learning_rate", rate)
    tree.setdefault("checkpoint", {"every": CHECKPOINTS_OF_A_RUN})
    return WholeJob(tree, _comments(found, way, kind, tree), places, exported)


def _exported(model: Mapping[str, Any]) -> str | None:
    """Return the path in the table `[model]` if it is a checkpoint of zerotools, which must be
    exported before training; None if it is a model directory.
    """
    path = model.get("path")
    is_one = path is None or not Path(path).is_dir() or (Path(path) / CONFIG).is_file()
    return None if is_one else str(path)


def tokenizer_of(model: Mapping[str, Any]) -> str | None:
    """Return the directory of the tokenizer for the table `[model]`; None if the model has no
    tokenizer. A model directory that does not exist yet is assumed to have a tokenizer.
    """
    named = model.get("path", model.get("config"))
    if not isinstance(named, str):
        return None
    directory = Path(named).parent if "config" in model else Path(named)
    is_there = any((directory / name).is_file() for name in _TOKENIZERS)
    return str(directory) if is_there or not directory.is_dir() else None


def _comments(found: Estimate, way: Way, kind: str, tree: Mapping[str, Any]) -> dict[str, str]:
    has_weights, tokenizer = "path" in tree["model"], tree["data"].get("tokenizer")
    learned = LEARNED[kind] if has_weights else "a run from random weights"
    best = found.choice.row
    has_tokenizer = tokenizer != "bytes"
    is_best = best is not None and best.layout == way.row.layout and not way.changes
    lowest = f"stage {way.row.stage}: the lowest that fits"
    comments = {
        "model.path": "the weights to start from",
        "model.config": "no weights: the run starts from random weights",
        "model.config.model_type": f"a model of the size of {found.work.model.source}",
        f"data.{kind}": _SAID[kind],
        "data.sequence_length": "tokens; longer sequences take more memory",
        "data.tokenizer": "the model's tokenizer"
        if has_tokenizer
        else "the model has no tokenizer; name a directory with one",
        "train.batch_size": "sequences per step, over all ranks",
        "train.learning_rate": f"usual for {learned}",
        "train.activation_checkpointing": "less memory, about a third more time",
        "train.epochs": "or train.steps",
        "zero.stage": found.choice.reason if is_best else lowest,
        "offload.optimizer": "host memory or disk instead of the GPU: slower",
        "offload.params": "copied to the GPU block by block: slower",
        "offload.path": "a local NVMe disk is best",
        "lora.rank": "only the adapters are trained",
        "checkpoint.every": "steps; a stopped or crashed job resumes from the newest",
    }
    if way.row.layout.optimizer == "adamw8bit":
        comments["train.optimizer"] = "AdamW with moments in 8 bits"
    if kind == PREFERENCES:
        comments["train.batch_size"] = "pairs per step, over all ranks"
    if found.machine.on_gpu:
        peak = (
            f"{way.row.peak_bytes / GIB:.1f} of {found.machine.gpu_memory / GIB:.1f} GiB on each "
            "GPU"
        )
        comments["gpus"] = f"estimated: {peak}"
    return comments


def job_with_config(model: str, gpus: int | None, given: Mapping[str, Any]) -> JobFile:
    """Return a job that trains `model` on placeholder data, with the command-line options `given`.
    The config of another launcher can then be imported into this job.

    Raises:
        BadRequest: `model` is not an existing path, but for example a number of parameters.
    """
    table = model_table_of(model)
    if not table:
        raise BadRequest(
            f"{model}: no such file or directory; name a model directory or its config.json (a "
            "number of parameters is not enough with a config of another launcher)"
        )
    train: dict[str, Any] = {"steps": _MANY_STEPS}
    if given["batch"]:
        train |= {"micro_batch_size": given["batch"], "batch_size": given["batch"] * (gpus or 1)}
    if given["activation_checkpointing"]:
        train["activation_checkpointing"] = True
    tree: dict[str, Any] = {
        "model": table,
        "data": {
            "text": [_ANY_DATA],
            "sequence_length": given["sequence_length"] or read_shape(model).usual_length,
        },
        "train": train,
    }
    if gpus:
        tree["gpus"] = gpus
    if given["engine"]:
        tree["engine"] = given["engine"]
    return JobFile(tree, "the command line", Path.cwd())


def without_placeholders(job: Mapping[str, Any]) -> dict[str, Any]:
    """Return a job that `job_with_config` made, without its placeholders for data and steps."""
    data = {name: value for name, value in job["data"].items() if name != "text"}
    train = {name: value for name, value in job["train"].items() if name != "steps"}
    return {**job, "data": data, "train": train}
