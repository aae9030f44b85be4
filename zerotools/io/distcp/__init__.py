"""The container of torch.distributed.checkpoint: `.metadata`, and the items of `.distcp` files.

dcp_file_names     the names of its files
metadata           `.metadata`, a pickle, as checked values
metadata_writer    writes `.metadata` from checked values
lay_out_data_file  lays out a new `.distcp` file
dcp_directory      joins the metadata of all ranks, and makes tensors from it, by flat key
check_data_files   checks that all files exist, and are of one save
item_chunks        finds the bytes of a tensor, or of a part of a stored tensor, in a file
prune_directory    plans a copy of a directory without some of its values

Every format that uses this container reads and writes it with these modules. `zerotools.formats`
defines the meaning of the keys. Imports only `core` and `io`, and neither torch nor numpy.
"""
