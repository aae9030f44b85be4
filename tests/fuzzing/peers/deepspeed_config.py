"""DeepSpeed's own parser of its configuration, for a run of one rank that DeepSpeed trains."""

from __future__ import annotations

import copy
import logging
import os
from collections.abc import Mapping
from typing import Any

from zerotools.jobs.imports.combine_configs import Imported
from zerotools.jobs.imports.reading.import_report import KeyOutcome

os.environ.setdefault("DS_ACCELERATOR", "cpu")
from deepspeed.runtime.config import DeepSpeedConfig

logging.getLogger("DeepSpeed").setLevel(logging.CRITICAL)

ONLY_THEIRS = (
    "DeepSpeed has no such key",  # which DeepSpeed passes over in silence
    # Of the values of the optimizer, the schedule and of what it does not use DeepSpeed's parser
    # looks at none: they fail when the engine is made, or do something else than they say.
    " must ",
    "DeepSpeed rejects it in this section",
    "does not start with it",
    # What would have no effect, or another than the job says.
    "is an older name of",
    "only at stage 3",
    "needs stage",
    "divides the gradients by the loss scale",
    "needs a call of engine.compile()",
    "makes several ranks compute one sequence",
    "after zerotools has marked them as complete",
    "works in DeepSpeed's data loader",
    # "auto" where nothing resolves it.
    "only zerotools submit replaces it; write a value",
    "zerotools has no value for this key",
)
"""Parts of what ours says where only the peer accepts a configuration."""


def compare(tree: Any, imported: Imported) -> None:
    """`imported` is what ours made of the configuration `tree`: of one that ours accepts, the peer
    is shown what DeepSpeed would be given, in which no "auto" is left.

    Where only ours accepts it, it must be for keys that say nothing to ours, and are handed on as
    they are: of these the daemon asks DeepSpeed itself before a job is queued
    (`jobs/preflight/deepspeed_config_check`)."""
    if imported.problem is not None:
        said = str(imported.problem)
        known = not isinstance(_read(tree), DeepSpeedConfig) or _is_listed(said)
        assert known, f"only theirs accepts it: {said}"
        return
    given: Any = imported.deepspeed
    theirs = _read(given)
    if not isinstance(theirs, DeepSpeedConfig):
        theirs = _read(_without_passed(given, imported))
    assert isinstance(theirs, DeepSpeedConfig), f"only ours accepts it: {theirs}"
    if imported.spec is not None:
        _same(given, imported, theirs)


def _is_listed(said: str) -> bool:
    return any(part in said for part in ONLY_THEIRS)


def _read(tree: Any) -> Any:
    """What the peer makes of it, or why it does not."""
    try:
        return DeepSpeedConfig(copy.deepcopy(tree))
    except Exception as error:  # assertions, pydantic's, its own, and those of Python
        return f"{type(error).__name__}: {error}"


def _without_passed(tree: Any, imported: Imported) -> Any:
    """`tree` without the keys that say nothing to ours."""
    found = copy.deepcopy(tree)
    for row in imported.findings.rows:
        if row.outcome in (KeyOutcome.PASSED, KeyOutcome.IGNORED):
            *sections, last = row.key.split(".")
            inner = found
            for section in sections:
                inner = inner.get(section) if isinstance(inner, dict) else None
            if isinstance(inner, dict):
                inner.pop(last, None)
    return found


def _same(tree: Mapping[str, Any], imported: Imported, theirs: Any) -> None:
    """What both say of a run, where the configuration that DeepSpeed is given says it."""
    job: Any = imported.spec
    mapped = {row.key for row in imported.findings.rows if row.outcome is KeyOutcome.MAPPED}
    if "zero_optimization" in tree:
        assert job.zero.stage == theirs.zero_optimization_stage, job.zero
    if "bf16" in tree or "fp16" in tree:
        kind = "bf16" if theirs.bfloat16_config.enabled else None
        kind = "fp16" if theirs.float16_config.enabled else kind
        assert job.train.precision == (kind or "fp32"), job.train
    if "gradient_clipping" in tree:
        assert job.train.max_grad_norm == theirs.gradient_clipping, job.train
    for name, ours in (("lr", "learning_rate"), ("weight_decay", "weight_decay")):
        if f"optimizer.params.{name}" in mapped:
            assert getattr(job.train, ours) == theirs.optimizer_params[name], job.train
