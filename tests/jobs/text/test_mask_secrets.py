"""What looks like a secret is hidden, and what only sounds like one is shown."""

from __future__ import annotations

import time

import pytest

from zerotools.jobs.text.mask_secrets import (
    is_secret_name,
    mask_text,
    mask_tree,
    result_of,
    secret_argument_steps,
)

HUB = "hf_" + "a1B2" * 8


@pytest.mark.parametrize(
    "name",
    [
        *("HF_TOKEN", "WANDB_API_KEY", "AWS_SECRET_ACCESS_KEY", "--hub-token", "--api_key"),
        *("db.password", "githubToken", "apiKey", "MY_KEY", "DB_PASS", "PGPASSWORD_", "SENTRY_DSN"),
        *("AWS_SESSION_TOKEN", "AZURE_CLIENT_SECRET", "GOOGLE_CREDENTIALS", "--auth-key"),
    ],
)
def test_names_of_secrets(name: str) -> None:
    assert is_secret_name(name)


@pytest.mark.parametrize(
    "name",
    [
        *("PATH", "--max-tokens", "--pad-token", "eos_token", "tokens_per_step", "TOKENIZER"),
        *("--sort-key", "keys", "AUTHOR", "compass", "--bypass-cache", "HF_TOKEN_PATH", "", "--"),
        *("GOOGLE_CREDENTIALS_FILE", "--tokenizer", "passes", "monkey"),
    ],
)
def test_names_that_only_sound_so(name: str) -> None:
    assert not is_secret_name(name)


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (["--token", "abc", "--lr", "1"], ["--token", "***", "--lr", "1"]),
        (["--api-key=abc"], ["--api-key=***"]),
        (["TOKEN=abc", "x.password=abc"], ["TOKEN=***", "x.password=***"]),
        (["sh", "-c", "WANDB_API_KEY='a b' python t.py"], None),
        (["-c", f"login {HUB}"], ["-c", "login ***"]),
        (["http://me:abc@host/x"], ["http://***@host/x"]),
        (["--token", "--next"], ["--token", "--next"]),
        (["--eos-token", "</s>", "--max-tokens=7"], ["--eos-token", "</s>", "--max-tokens=7"]),
    ],
)
def test_commands_are_shown_without_secrets(words: list[str], shown: list[str] | None) -> None:
    masked = mask_tree(words)
    assert masked == (shown or ["sh", "-c", "WANDB_API_KEY=*** python t.py"])


def test_texts_are_shown_without_secrets() -> None:
    said = f"t.py: error: unrecognized arguments: --token abcd; Authorization: Bearer {HUB}"
    masked = mask_text(said)
    assert "abcd" not in masked
    assert HUB not in masked
    assert mask_text("it said: open sesame", ["open sesame"]) == "it said: ***"
    assert mask_text("the token is wrong: 7 of 8", ["is"]) == "the token is wrong: 7 of 8"


def test_trees_are_shown_without_secrets() -> None:
    tree = {"a": [{"api_key": "abc"}, 7], "command": ["x", "--token", "abc"], "pad_token": "<p>"}
    assert mask_tree(tree) == {
        "a": [{"api_key": "***"}, 7],
        "command": ["x", "--token", "***"],
        "pad_token": "<p>",
    }


def test_the_values_themselves_are_known() -> None:
    assert result_of(secret_argument_steps(["--token", "abc", "--key=1", "A_KEY=def"])) == [
        "abc",
        "def",
    ]


@pytest.mark.parametrize(
    "text",
    ["export API_KEY={}", "--verbose API_KEY={}", "error: token={} is wrong", "a b 1_API_KEY: {}"],
)
def test_what_comes_before_a_name_does_not_show_its_value(text: str) -> None:
    assert mask_text(text.format("hunter22")) == text.format("***")


@pytest.mark.parametrize("unit", ["x", "a1", "a:", "-", "eyJ-", "://", "bearer ", " ", "'", "=a"])
def test_a_long_text_is_looked_through_at_once(unit: str) -> None:
    text = unit * (2**18 // len(unit))
    began = time.process_time()
    assert mask_text(text) == text
    assert time.process_time() - began < 5  # it took minutes, in the daemon's main loop
