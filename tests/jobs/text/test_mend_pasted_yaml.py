"""YAML that was pasted from a web page is the config again, every mend named by its line."""

from __future__ import annotations

import pytest

from tests.jobs.imports.jobs import JOB, a_job, said
from zerotools.core.errors import BadRequest
from zerotools.jobs.imports.accelerate_yaml import YAML_KEYS
from zerotools.jobs.imports.combine_configs import import_configs
from zerotools.jobs.text.yaml_parser import parse_yaml

TEXT = """compute_environment: LOCAL_MACHINE
deepspeed_config:
  gradient_accumulation_steps: 4
  offload_param_device: cpu
  zero_stage: 3
distributed_type: DEEPSPEED
downcast_bf16: 'no'
mixed_precision: bf16
num_processes: 8
tpu_env: []
use_cpu: false
"""
WHOLE = parse_yaml(TEXT, source="acc.yaml", keys=YAML_KEYS).tree
FREE = JOB.replace("gpus = 2", "") + "batch_size = 64\n"
PAGES = {
    "non-breaking indentation": TEXT.replace("  ", "\u00a0\u00a0"),
    "non-breaking everywhere": TEXT.replace(" ", "\u00a0"),
    "ideographic indentation": TEXT.replace("  ", "\u3000"),
    "tabs": TEXT.replace("  ", "\t"),
    "no space after the colon": TEXT.replace(": 3", ":3").replace(": bf16", ":bf16"),
    "full-width colons": TEXT.replace(": ", "\uff1a"),
    "typographic quotes": TEXT.replace("'no'", "\u2018no\u2019"),
    "invisible characters": TEXT.replace("zero_stage", "\u200bzero_stage"),
    "a fence": f"```yaml\n{TEXT}```\n",
    "text around": f"My default_config.yaml\n\n{TEXT}\nNow start the training!\n",
    "line numbers": "\n".join(f"{i} {x}" for i, x in enumerate(TEXT.strip().split("\n"), 1)),
    "slashes": TEXT.replace("cpu\n", "cpu  // saves memory\n"),
    "lost indentation": TEXT.replace("  ", ""),
}
READ = ("typographic quotes", "slashes", "lost indentation", "line numbers")
"""What is YAML, of another meaning."""


@pytest.mark.parametrize("page", PAGES)
def test_it_is_the_config_again(page: str) -> None:
    document = parse_yaml(PAGES[page], source="acc.yaml", lenient=True, keys=YAML_KEYS)
    assert document.tree == WHOLE
    assert document.accepted
    assert document.mended is not None
    assert parse_yaml(document.mended, source="acc.yaml", keys=YAML_KEYS).tree == WHOLE


@pytest.mark.parametrize("page", PAGES)
def test_without_lenient_it_is_never_read_as_another_stage(page: str) -> None:
    if page in READ:
        imported = import_configs(
            a_job(FREE), accelerate=parse_yaml(PAGES[page], source="acc.yaml", keys=YAML_KEYS)
        )
        assert imported.problem is not None or imported.tree["zero"]["stage"] == 3
        return
    with pytest.raises(BadRequest, match=r"\(--lenient repairs this"):
        parse_yaml(PAGES[page], source="acc.yaml", keys=YAML_KEYS)


def test_a_stage_below_non_breaking_spaces_names_the_character() -> None:
    with pytest.raises(BadRequest) as caught:
        parse_yaml(PAGES["non-breaking indentation"], source="acc.yaml", keys=YAML_KEYS)
    assert str(caught.value).startswith(
        "acc.yaml:3:1: is not valid YAML: a non-breaking space stands here; write a plain space"
    )


def test_every_mend_has_its_line() -> None:
    text = TEXT.replace("  zero_stage: 3", "zero_stage\uff1a 3").replace("  off", "\u00a0\u00a0off")
    document = parse_yaml(text, source="acc.yaml", lenient=True, keys=YAML_KEYS)
    assert document.accepted == (
        "acc.yaml:4: a non-breaking or other odd space",
        "acc.yaml:5: lost indentation: zero_stage belongs to deepspeed_config",
        "acc.yaml:5: \uff1a for :",
    )
    assert document.location(("deepspeed_config", "zero_stage")) == "acc.yaml:5"


def test_a_key_that_lost_its_indentation_says_where_it_belongs() -> None:
    document = parse_yaml(PAGES["lost indentation"], source="acc.yaml", keys=YAML_KEYS)
    message = said(import_configs(a_job(FREE), accelerate=document))
    assert (
        "acc.yaml:5 zero_stage: accelerate has no such key; did you mean "
        "deepspeed_config.zero_stage? indent it below deepspeed_config, or give --lenient"
    ) in message


def test_dots_are_not_guessed() -> None:
    with pytest.raises(BadRequest, match="the dots stand for settings"):
        parse_yaml(
            TEXT.replace("  zero_stage: 3", "  \u2026"), source="x", lenient=True, keys=YAML_KEYS
        )


def test_a_whole_config_is_left_as_it_is() -> None:
    document = parse_yaml(TEXT, source="acc.yaml", lenient=True, keys=YAML_KEYS)
    assert (document.accepted, document.mended) == ((), None)
