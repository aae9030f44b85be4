"""Which parts of a web page are launch lines and configs."""

from __future__ import annotations

from zerotools.jobs.text.configs_in_page import BlockKind, block_lines, blocks_of

PAGE = """A page, which says: deepspeed is fast, and {this} is no JSON.

LR=1e-4

export N=2
deepspeed --num_gpus=$N main.py \\ # all cards
    --deepspeed ds.json

    --learning_rate $LR
Then write ds.json:
ds_config = {  # with a {brace}
  "zero_optimization": {"stage": 2}  // and a }
}
{"name": "not a config"}
Or use accelerate: launch it with
compute_environment: LOCAL_MACHINE
deepspeed_config:
zero_stage: 2
distributed_type: DEEPSPEED
num_processes: 2
the end: of it
$ accelerate launch --num_processes 2 x.py --max_steps 3
"""


def test_blocks_have_their_kinds_places_and_settings() -> None:
    found = blocks_of(PAGE)
    assert [(each.kind, each.line, each.text.count("\n") + 1) for each in found] == [
        (BlockKind.LAUNCH, 3, 7),
        (BlockKind.DEEPSPEED, 11, 3),
        (BlockKind.ACCELERATE, 16, 5),
        (BlockKind.LAUNCH, 22, 1),
    ]
    assert found[0].text.startswith("LR=1e-4")
    assert found[0].text.endswith("--learning_rate $LR")
    assert found[1].padded_text.split("\n")[10].startswith("ds_config = {")
    assert list(block_lines(found))[3] == (
        "  4  line 22: launch line, 1 line: $ accelerate launch --num_processes 2 ..."
    )


def test_html_is_read_as_a_browser_shows_it() -> None:
    page = (
        "<!DOCTYPE html><html><head><script>torchrun x.py --a</script></head><body><p>Run\n"
        "this:</p><pre><code>torchrun x.py \\\n  --lr 1 &amp;&amp; echo</code></pre>"
        "<p>with<br>{ &quot;train_batch_size&quot;: 8 }</p></body></html>"
    )
    launch, config = blocks_of(page)
    assert launch.text == "torchrun x.py \\\n  --lr 1 && echo"
    assert config.text.strip() == '{ "train_batch_size": 8 }'


def test_a_page_without_any_has_none() -> None:
    assert blocks_of("deepspeed\n{\n" + "a: b\n" * 5000) == []
