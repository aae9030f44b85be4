"""Differences in training between a job of the engine `torch` and its original program."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from zerotools.jobs.imports.reading.job_keys import look_up
from zerotools.jobs.imports.reading.report import KeyOutcome, ReportRow


def differences(tree: Mapping[str, Any], rows: list[ReportRow], program: str) -> Iterator[str]:
    """Yield a sentence for each difference between the job in `tree` and `program`, as people know
    of them before they compare losses."""
    if look_up(tree, "data.examples") is not None:
        yield "prompts: by the tokenizer's chat template if it has one, else unchanged"
        yield "loss: only on responses, never on prompts (data.loss_on)"
        if look_up(tree, "data.packing") is None:
            yield "batches: an example is a sequence; data.packing = true joins short ones"
    elif look_up(tree, "data.preferences") is not None:
        yield "prompts: by the tokenizer's chat template if it has one, else unchanged"
        yield "reference: the start weights; computed once, before the first step"
    elif look_up(tree, "data.text") is not None:
        yield "text: one stream of all files, in windows of data.sequence_length tokens"
    if look_up(tree, "eval.predict_with_generate"):
        beams = look_up(tree, "eval.num_beams") or 1
        if beams > 1:
            yield f"scores: BLEU and ROUGE by zerotools[scores], {beams} beams"
        else:
            yield "scores: BLEU and ROUGE by zerotools[scores], no beam search (eval.num_beams)"
    yield f"checkpoints: step-N of zerotools; {program} does not read them"
    if any(row.outcome is KeyOutcome.UNKNOWN for row in rows):
        yield f"the arguments above that are unknown: only {program} reads them"
