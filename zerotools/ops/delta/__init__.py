"""Make deltas, the difference between two models, and apply them to the first model.

apply_delta       apply one delta, or several in order, to a model
delta_chain       the model that several deltas make, block by block
make_delta        write the delta of two models
delta_in_parts    make a delta in parts, and join them
models_of_delta   the model that `consolidate` would write from a checkpoint
delta_file        the file of a delta: header, blocks, digests
block_codec       the changed elements of one block, compressed

docs/explanation/delta-file.md describes the file.
"""
