"""A format that is only read: two modules. It would be `zerotools/formats/read_only/`.

A checkpoint is a directory with one file of tensor bytes and one of JSON::

    tensors.json    {"w": {"dtype": "float32", "shape": [3, 4], "offset": 0}}
    tensors.bin     the tensors, row-major

format  the `Format`, as a line of a table of formats
read    directory -> Checkpoint
"""
