"""torch.save archives: the zip container and the pickle in it, read and written without torch.

zip_directory   the position of each record of the zip
recovery        the same if the directory of the zip is lost
archive         a zip and its pickle together: storages by key
legacy_archive  the same for the format before torch 1.6, which is not a zip
pt_file         one file in either format: its tree, positions of its tensors, a new tree for it
window          a range of a file, which may be an archive inside it
unpickle        bytes -> tree; runs nothing, imports nothing
pickle_machine  the opcodes of a pickle, on a stack with limits
pickle_values   the values of a pickle that are not plain Python, and a walk over a tree
globals         the names in a pickle that stand for tensors and containers
hashable        the values that may be keys
tensors         the tensors in a tree, also those that torch wrapped
unread          the tensors with bytes that are not moved, by kind
pickles         tree -> bytes that torch and pickle load
archive_layout  the position of every byte of a new archive
"""
