"""Callbacks that connect the trainers of other libraries to `zerotools.worker`.

    transformers    for the Trainer of transformers and its subclasses
    lightning       for the Trainer of Lightning
    ranks           agreement of the ranks on stops and saves

They run in the programs of users, so they use no syntax newer than Python 3.9. They import the
standard library, `zerotools.worker` and the library in their name.
"""
