"""What `submit --dry-run --show N` prints of examples."""

from __future__ import annotations

from pathlib import Path

from tests.daemon.http.api.fakes import FakeService
from zerotools.cli.job_views.training_examples import example_lines


def test_what_is_learned_is_marked_on_each_line_and_nothing_moves_the_cursor(
    tmp_path: Path,
) -> None:
    assert list(example_lines("job.toml", FakeService(tmp_path).sample)) == [
        (
            "job.toml: the first examples in the form that the model gets; the model learns the "
            "text between {+ and +}"
        ),
        "",
        "a.jsonl, line 1   9 tokens, 4 trained; 2 more were cut off",
        "  <|user|>a\\x1b",
        "  <|assistant|>{+b+}",
        "  ",
        "  {+c<|end|>+}",
        "  ... (the rest is not shown)",
        "",
        "3 examples examined, 25 % of 40 tokens trained",
        "  2 equal to an earlier example",
        "  1 left out: no prompt or no answer",
        "tokens per example",
        "   9 - 12  ######################################## 2",
        "  13 - 16   0",
        "  17 - 19  #################### 1",
        "packed: 2 sequences of 24 tokens, 83 % full",
        "an epoch: about 40000 tokens, 2000 sequences, 250 steps; 2 h 00 min at 100 TFLOP/s",
        "memory: state of a rank: 12.0 MiB on the device",
    ]
    [line] = example_lines("job.toml", None)
    assert "has no examples to show" in line
