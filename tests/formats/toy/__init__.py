"""toy: a format that no program has, complete and small.

docs/contributing/add-a-format.md describes how to write one.

A checkpoint is a directory. `rank-N.bin` has the bytes of rank N: its rows of every tensor, one
block after another. `toy.json` says the rest::

    {"toy": 1, "world_size": 2,
     "tensors": [{"name": "w", "role": "param", "dtype": "float32", "shape": [3, 4], "blocks": [
         {"file": "rank-0.bin", "offset": 0, "start": [0, 0], "shape": [1, 4]},
         {"file": "rank-1.bin", "offset": 0, "start": [1, 0], "shape": [2, 4]}]}],
     "aliases": {"tied": "w"},
     "scalars": [{"name": "w", "role": "step", "value": 3.0, "dtype": "float32"}],
     "run": {"groups": [{"params": ["w"], "options": ...}], "precision": "bfloat16", ...}}

It would be `zerotools/formats/toy/` if it were shipped.

file_names      names of a checkpoint's files
json_fields     members of JSON objects, each checked where it is read
plain_values    trees of plain values as JSON
training_state  the run, to and from toy.json
read            toy.json -> Checkpoint
lay_out         a checkpoint of any format -> Target
format          these as a line of a table of formats
made            checkpoints for tests, and the table with one more line
"""
