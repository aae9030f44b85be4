"""`python -m benchmarks.loss`: both tables, as Markdown."""

from __future__ import annotations

import sys

from benchmarks.loss import sizes, steps


def main(words: list[str]) -> None:
    """Print the tables; `step TOKENS VOCABULARY HIDDEN LAYERS WAY`: measure one case."""
    if words:
        tokens, vocabulary, hidden, layers = map(int, words[1:5])
        print(*steps.run(tokens, vocabulary, hidden, layers, words[5]))
        return
    print("## The loss alone\n", flush=True)
    for line in sizes.table():
        print(line, flush=True)
    print("\n## A step of a small Llama in bf16\n", flush=True)
    for line in steps.table():
        print(line, flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
