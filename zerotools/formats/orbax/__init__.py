"""Checkpoints of Orbax, the library with which JAX programs (Flax, MaxText) save.

A saved tree is an item. A `CheckpointManager` puts the items of a step into a directory::

    1000/_CHECKPOINT_METADATA     the items of the step, and when it was committed
    1000/commit_success.txt       written last
    1000/items/_METADATA          the tree: the path of each array, and how arrays are stored
    1000/items/manifest.ocdbt     with OCDBT: the database that has all arrays
    1000/items/d/...              with OCDBT: the data files of the database
    1000/items/ocdbt.process_N/   with OCDBT: the data files that process N wrote
    1000/items/NAME/...           without OCDBT: a zarr directory for each array

Arrays are stored as zarr, version 2 or 3. Orbax compresses their chunks, so elements have no
positions in files. Each array is therefore read as if its decoded chunks were a file (`ArrayPath`).
All files are read by ranges through `OpenFiles`, on a disk and in an object store alike, and
TensorStore only decodes chunks in memory. `lay_out` writes arrays that are not compressed
(`uncompressed_zarr_arrays`).

file_names                names of directories and files that identify a checkpoint
tree_metadata             `_METADATA`: the path and type of each value of the tree
tree_names                the tensor name and role of each value
ocdbt                     the values of an OCDBT database: key -> range of a file
stored_bytes              the stored bytes of an item's arrays, by key
tensorstore_arrays        arrays that TensorStore decodes
arrays_as_virtual_files   `ArrayPath`: an array as a file of its elements
uncompressed_zarr_arrays  zarr 2 arrays without compression
read                      directory -> Checkpoint
training_state            Checkpoint -> TrainingState
lay_out                   weights -> Target
format                    the `Format` of Orbax
"""
