"""A Trainer's settings of sharding, besides a DeepSpeed config: `--fsdp`, or none."""

from __future__ import annotations

from zerotools.jobs.imports.reading.report import KeyOutcome
from zerotools.jobs.imports.recipes.argument_values import ArgumentReading
from zerotools.jobs.launcher_keys.key_kinds import ValueKind

_STAGES = {"full_shard": 3, "shard_grad_op": 2, "no_shard": 0, "true": 3}
STAGE = "zero.stage"


def read_sharding(reading: ArgumentReading) -> None:
    """Map `fsdp`. Without it and without a config, every rank has the whole model."""
    config, recipe = reading.config, reading.recipe
    for name in [n for n in config.remaining if n.startswith("fsdp_")]:
        option = config.remaining.pop(name)
        config.row(KeyOutcome.IGNORED, option, None, "how FSDP wraps and communicates")
    stage = reading.typed("zero_stage", ValueKind.COUNT)
    if stage is not None:
        config.map(stage, STAGE, stage.value)
    offload = reading.typed("offload", ValueKind.BOOL)
    if offload is not None and offload.value is True:  # of the programs of DeepSpeed-Chat
        config.map(offload, "offload.optimizer", "cpu")
        if stage is not None and stage.value == 3:
            config.map(offload, "offload.params", "cpu")
    elif offload is not None:
        config.row(KeyOutcome.IGNORED, offload, None, "is off")
    given = config.take("fsdp")
    if given is not None and given.value not in (None, "", [], False):
        words = given.value if isinstance(given.value, list) else str(given.value).split()
        words = [str(word).lower() for word in words]
        stages = [_STAGES[word] for word in words if word in _STAGES]
        others = [w for w in words if w not in _STAGES and w not in ("offload", "auto_wrap")]
        if others or len(stages) != 1:
            reading.unsupported(given, f"supported: {', '.join(_STAGES)}, offload, auto_wrap")
            return
        config.map(given, STAGE, stages[0])
        if "offload" in words:
            # FSDP offloads what it shards; below stage 3 the weights stay
            key = "offload.params" if stages[0] == 3 else "offload.optimizer"
            config.map(given, key, "cpu")
        return
    if given is not None:
        config.row(KeyOutcome.IGNORED, given, None, "is off")
    if recipe.deepspeed is None and recipe.accelerate is None and recipe.defaults and stage is None:
        config.default("deepspeed, fsdp", STAGE, 0, "every rank has the whole model")
