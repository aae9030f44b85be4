"""torch.save archives: the zip container and the pickle in it, read and written without torch.

zip_directory    the position of each record of the zip
archive          a zip and its pickle together: storages by key, also without a zip directory
pt_file          one file in either format: its tree, positions of its tensors, a new tree for it
file_range       a range of a file, which may be an archive inside it
unpickle         bytes -> tree; runs nothing, imports nothing
pickle_machine   the opcodes of a pickle, on a stack with limits
pickle_values    the values of a pickle that are not plain Python, and a walk over a tree
pickle_globals   names in a pickle that stand for tensors and containers; values that may be keys
tree_tensors     finds the tensors in a tree, also wrapped tensors and tensors that cannot be copied
pickle_writer    tree -> bytes that torch and pickle load
lay_out_archive  the position of every byte of a new archive
"""
