"""The first training examples of a job in the form that the model gets: `submit --dry-run --show
N`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from zerotools.cli.output.colours import paint, wants_colour
from zerotools.cli.output.render import clean, duration
from zerotools.core.counts_and_sizes import count_text

BAR = 40
"""The length of the longest bar, in columns."""
RATE = 1e14
"""The assumed operations per second, from which the time of an epoch is estimated."""


def example_lines(source: str, sample: Mapping[str, Any] | None) -> Iterator[str]:
    """Yield the lines about each example, and then the lines about all examples together.

    Text that the model is trained on is green. Without colour it is between `{+` and `+}`.
    """
    if sample is None:
        why = "it consists of token ids, or is too short for one sequence"
        yield f"{clean(source)}: its data has no examples to show: {why}"
        return
    total, trained = sample["tokens"], sample["trained_tokens"]
    how = "in green" if wants_colour(sys.stdout) else "between {+ and +}"
    yield (
        f"{clean(source)}: the first examples in the form that the model gets; the model learns "
        f"the text {how}"
    )
    for example in sample["examples"]:
        yield ""
        yield _heading(example)
        yield from _text(example)
    yield ""
    yield f"{count_text(sample['looked_at'], 'example')} examined, {_share(trained, total)} trained"
    for name, what in (
        ("duplicates", "equal to an earlier example"),
        ("empty", "left out: no prompt or no answer"),
    ):
        if sample[name]:
            yield f"  {sample[name]} {what}"
    yield "tokens per example"
    yield from _bars(sample["lengths"])
    yield from _expected(sample)


def _expected(sample: Mapping[str, Any]) -> Iterator[str]:
    """Yield lines about the size of the training: sequences, tokens, steps and memory. Yield
    nothing if the daemon is too old to send these values.
    """
    packed, epoch, memory = (sample.get(name) for name in ("packed", "epoch", "memory"))
    if packed:
        sequences = count_text(packed["sequences"], "sequence")
        yield (
            f"packed: {sequences} of {packed['length']} tokens, {100 * packed['filled']:.0f} % full"
        )
    if epoch:
        line = f"an epoch: about {count_text(epoch['tokens'], 'token')}, "
        line += (
            f"{count_text(epoch['sequences'], 'sequence')}, {count_text(epoch['steps'], 'step')}"
        )
        if operations := epoch["operations"]:
            seconds = max(1, round(operations / RATE))
            line += f"; {duration(seconds)} at {RATE / 1e12:.0f} TFLOP/s"
        yield line
    if memory:
        yield f"memory: {clean(memory)}"


def _heading(example: Mapping[str, Any]) -> str:
    words = [f"{count_text(example['tokens'], 'token')}, {example['trained_tokens']} trained"]
    if example["tokens_lost"]:
        words.append(f"{example['tokens_lost']} more were cut off")
    return f"{clean(example['place'])}   {'; '.join(words)}"


def _text(example: Mapping[str, Any]) -> Iterator[str]:
    text = ""
    for part in example["parts"]:
        # Each line of a part is marked separately: a colour does not reach over a line's end.
        text += "\n".join(
            _trained(line) if part["trained"] else clean(line) for line in part["text"].split("\n")
        )
    yield from (f"  {line}" for line in text.split("\n"))
    if example["text_cut"]:
        yield "  ... (the rest is not shown)"


def _trained(line: str) -> str:
    if not line or wants_colour(sys.stdout):
        return paint(clean(line), "good", sys.stdout)
    return f"{{+{clean(line)}+}}"


def _share(part: int, whole: int) -> str:
    return f"{100 * part / whole:.0f} % of {count_text(whole, 'token')}" if whole else "0 tokens"


def _bars(lengths: Sequence[Sequence[int]]) -> Iterator[str]:
    most = max((count for _, _, count in lengths), default=0)
    ranges = [f"{begin} - {end}" for begin, end, _ in lengths]
    columns = max(map(len, ranges), default=0)
    for name, (_, _, count) in zip(ranges, lengths, strict=True):
        bar = "#" * (-(-BAR * count // most) if most else 0)
        yield f"  {name:>{columns}}  {bar} {count}"
