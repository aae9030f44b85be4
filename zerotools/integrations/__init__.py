"""Callbacks that connect the trainers of other libraries to `zerotools.worker`.

    transformers    for the Trainer of transformers and its subclasses
    lightning       for the Trainer of Lightning
    ranks           what the ranks of one training agree on

They run in programs of users: no newer syntax than that of Python 3.9, and nothing but the standard
library, `zerotools.worker` and the library that a module is named for.
"""
