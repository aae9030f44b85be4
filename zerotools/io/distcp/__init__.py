"""The container of torch.distributed.checkpoint: `.metadata`, and the items of `.distcp` files.

file_names        the names of its files
metadata          `.metadata`, a pickle, as checked values
metadata_writer   checked values -> `.metadata`, and the layout of a new `.distcp` file
dcp_directory     the metadata of all ranks joined to one, and its tensors by flat key
check_data_files  checks that all files exist, and are of one save
item_chunks       the position of a tensor's bytes in a file, also of a part of a stored tensor
prune_directory   a directory without some of its values

Every format that uses this container reads and writes it with these modules. `zerotools.formats`
defines the meaning of the keys. Imports only `core` and `io`, and neither torch nor numpy.
"""
