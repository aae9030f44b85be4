"""Compute batch sizes and the number of ranks from the rule batch = micro batch x accumulation x
ranks.

Each of these numbers may come from any source. Ranks that compute a sequence together
(`zero.sequence_ranks`) share one micro batch, so they count as one rank.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

from zerotools.jobs.imports.reading.check_deepspeed_keys import AUTO
from zerotools.jobs.imports.reading.config_reader import ConfigReading
from zerotools.jobs.imports.reading.import_report import KeyOutcome
from zerotools.jobs.imports.reading.key_claims import Claim, Claims

TOTAL = "train_batch_size"
MICRO = "train_micro_batch_size_per_gpu"
STEPS = "gradient_accumulation_steps"
JOB_TOTAL = "train.batch_size"
JOB_MICRO = "train.micro_batch_size"
JOB_SEQUENCE_RANKS = "zero.sequence_ranks"
JOB_TENSOR_RANKS = "zero.tensor_ranks"
_TOGETHER = {
    JOB_SEQUENCE_RANKS: "ranks that share sequences",
    JOB_TENSOR_RANKS: "tensor ranks",
}
_JOB_KEYS = {TOTAL: JOB_TOTAL, MICRO: JOB_MICRO, STEPS: JOB_TOTAL}


@dataclass(frozen=True)
class BatchFact:
    """One of the four numbers (batch, micro batch, accumulation, ranks), and its source."""

    value: int
    place: str

    def __str__(self) -> str:
        return f"{self.value} ({self.place})"


BatchFacts = dict[str, BatchFact | None]


def read_batch(reading: ConfigReading) -> None:
    """Translate the three batch keys of a config to the job file. If one of the numbers is missing,
    compute it.

    This follows DeepSpeed: two numbers determine the third. If only the micro batch is given,
    accumulation is 1.
    """
    stated = {name: _stated(reading, name) for name in (TOTAL, MICRO, STEPS)}
    facts: BatchFacts = dict.fromkeys(stated)
    if not list(reading.claims.contradictions()) and not reading.findings.wrong:
        facts = _settle(reading, stated)
    for name, fact in facts.items():
        _resolve(reading, name, fact)


def _stated(reading: ConfigReading, name: str) -> BatchFact | None:
    """Return the number of the config's batch key `name`, record it as the job's value, and report
    it. Return None if the config has no valid number."""
    given = reading.remaining.get(name)
    if given is None or not isinstance(given.value, int):
        return None
    reading.pop(name)
    if given.value == 0:
        reading.findings.wrong.append(f"{given.label} = 0: must be at least 1")
        return None
    if name == STEPS:
        reading.row(KeyOutcome.MAPPED, given, JOB_TOTAL)
    else:
        reading.map(given, _JOB_KEYS[name], given.value)
    return BatchFact(given.value, given.label)


def world_size(claims: Claims) -> BatchFact | None:
    """Return the number of ranks; None if no source states it."""
    claim = claims.of(ranks_key(claims))
    if claim is None:
        return None
    if isinstance(claim.value, (list, tuple)):
        return BatchFact(len(claim.value), claim.place)
    if isinstance(claim.value, Mapping):  # an elastic job: a config is made for all of its ranks
        most = claim.value.get("max")
        return BatchFact(most, claim.place) if type(most) is int and most > 0 else None
    return (
        BatchFact(claim.value, claim.place)
        if type(claim.value) is int and claim.value > 0
        else None
    )


def sequence_divisor(claims: Claims) -> BatchFact | None:
    """Return the number of parts into which the sequences of a step are divided; None if unknown. A
    part is computed by one rank, or by a group of ranks together.
    """
    ranks = world_size(claims)
    for key, whose in _TOGETHER.items():
        together = _stated_in_claims(claims, key)
        if ranks is None or together is None or together.value == 1:
            continue
        if ranks.value % together.value == 0:  # otherwise a rule of the job file reports it
            of = f"{ranks.place}, divided by {together.value} {whose}"
            ranks = BatchFact(ranks.value // together.value, of)
    return ranks


def ranks_key(claims: Claims) -> str:
    """Return the job's key for the number of ranks: `gpus`, or `ranks` for a job on CPUs."""
    device = claims.of("device")
    return "ranks" if device is not None and device.value == "cpu" else "gpus"


def _stated_in_claims(claims: Claims, key: str) -> BatchFact | None:
    claim: Claim | None = claims.of(key)
    if claim is None or type(claim.value) is not int or claim.value < 1:
        return None
    return BatchFact(claim.value, claim.place)


def _infer_world(
    reading: ConfigReading, total: BatchFact, micro: BatchFact, accumulation: BatchFact
) -> BatchFact | None:
    parts, rest = divmod(total.value, micro.value * accumulation.value)
    if rest or not parts:
        return None  # reported below, as if there was one rank
    place = f"{total.place}, divided by micro batch and accumulation"
    together = (_stated_in_claims(reading.claims, key) for key in _TOGETHER)
    ranks = parts * prod(each.value for each in together if each is not None)
    reading.claims.add(ranks_key(reading.claims), ranks, place)
    return BatchFact(parts, place)


def _settle(reading: ConfigReading, stated: BatchFacts) -> BatchFacts:
    """Return the three batch numbers: batch, micro batch and accumulation.

    A number that the config does not state is computed from the other numbers. It is None if that
    is not possible.
    """
    total, micro = (
        _stated_in_claims(reading.claims, JOB_TOTAL),
        _stated_in_claims(reading.claims, JOB_MICRO),
    )
    steps, world = stated[STEPS], sequence_divisor(reading.claims)
    if world is None and total and micro and steps:
        world = _infer_world(reading, total, micro, steps)
    world = world or BatchFact(1, "the job file's default")
    if total is None and micro is not None and (steps or stated[MICRO]):
        batch = micro.value * (steps.value if steps else 1) * world.value
        total = BatchFact(batch, f"{micro.place}, times accumulation and ranks")
        reading.claims.add(JOB_TOTAL, total.value, total.place)
    if total is None:
        return {TOTAL: None, MICRO: micro, STEPS: steps}
    per_rank, rest = divmod(total.value, world.value)
    known = (micro.value if micro else 1) * (steps.value if steps else 1)
    if rest or per_rank % known or (micro and steps and per_rank != known):
        reading.findings.wrong.append(_disagree(total, micro, steps, world))
    elif micro is None and steps is not None:
        micro = BatchFact(per_rank // steps.value, f"{total.place}, divided by {steps.place}")
        reading.claims.add(JOB_MICRO, micro.value, micro.place)
    micro = micro or BatchFact(per_rank, "batch size / ranks")
    accumulated = BatchFact(per_rank // micro.value, "batch size / (micro batch x ranks)")
    return {TOTAL: total, MICRO: micro, STEPS: steps or accumulated}


def _disagree(
    total: BatchFact, micro: BatchFact | None, steps: BatchFact | None, world: BatchFact
) -> str:
    factors = [f"micro batch {micro}"] if micro else []
    factors += [f"accumulation {steps}"] if steps else []
    factors.append(f"ranks {world}")
    product = world.value * (micro.value if micro else 1) * (steps.value if steps else 1)
    verb = "is not" if micro and steps else "is not a multiple of"
    return f"batch size {total} {verb} {product} = {' x '.join(factors)}; make them agree"


def _resolve(reading: ConfigReading, name: str, fact: BatchFact | None) -> None:
    if reading.peek(name) == AUTO:
        if fact is None:
            reading.resolve(
                name, None, f"the value of {JOB_TOTAL}, which you must add to the job file"
            )
        else:
            reading.resolve(name, fact.value, fact.place)
        reading.row(KeyOutcome.MAPPED, reading.remaining[name], _JOB_KEYS[name])
    reading.pop(name)
