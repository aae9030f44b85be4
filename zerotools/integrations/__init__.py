"""Connects the trainers and the evaluation harnesses of other libraries to `zerotools.worker`.

    transformers            callbacks for the Trainer of transformers and its subclasses
    lightning               callbacks for the Trainer of Lightning
    agree_between_ranks     agreement of the ranks on stops and saves
    evaluation_harness      a program that evaluates by lm-evaluation-harness

These modules run in the programs of users, so they use no syntax newer than Python 3.9. They import
the standard library, `zerotools.worker` and the library in their name.
"""
