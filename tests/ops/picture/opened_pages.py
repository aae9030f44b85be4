"""A page in a browser, and a model whose page has many layers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file


@contextmanager
def opened(
    browser: Any, path: Path, html: str, width: int = 390, scheme: str = "light"
) -> Iterator[Any]:
    """Yield the page `html`, written to `path`, in a window of `width` pixels. At the end the page
    has no error and is not wider than the window.
    """
    path.write_text(html)
    context = browser.new_context(
        viewport={"width": width, "height": 900}, color_scheme=scheme, offline=True
    )
    page = context.new_page()
    errors = list[str]()
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("console", lambda message: errors.append(message.text))
    page.goto(path.as_uri())
    yield page
    assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
    assert errors == []
    context.close()


def deep_model(path: Path, scale: float = 1) -> Path:
    """Write a model of twelve layers, which safetensors sorts as 0, 1, 10, 11, 2, ... The values of
    layer 5 are multiplied by `scale`.
    """
    kinds = ("attn.q_proj", "mlp.up_proj", "mlp.down_proj")
    names = [f"model.layers.{n}.{kind}" for n in range(12) for kind in kinds]
    noise = np.random.default_rng(0)
    weights = {f"{name}.weight": noise.standard_normal((24, 24)) for name in names}
    weights["model.layers.5.mlp.up_proj.weight"] *= scale
    others = {f"{name}.weight": np.ones((48, 24)) for name in ("model.embed_tokens", "lm_head")}
    save_file({**others, **weights}, path)
    return path
