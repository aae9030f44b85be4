"""The container of torch.distributed.checkpoint: `.metadata`, and the items of `.distcp` files.

file_names       the names of its files
metadata         `.metadata`, a pickle, as checked values
metadata_writer  checked values -> `.metadata`
planned_file     a data file that is laid out, archive by archive
directory        the metadata of all ranks as one, and its tensors by flat key
data_files       whether the files are all there, and of one save
derived_chunks   tensors that are made of parts of stored ones
pruned           a directory without some of its values
items            where a tensor's bytes lie in a file, and the values that are not tensors

Reads and writes them as checked values, for every format that uses the container: what the keys
mean is said in `zerotools.formats`. Imports `core` and `io` only, and neither torch nor numpy.
"""
