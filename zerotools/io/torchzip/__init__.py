"""torch.save archives: the zip container and the pickle in it, read and written without torch.

zip_directory   where each record of the zip is
recovery        the same where the directory of the zip is lost
archive         a zip and its pickle together: storages by key
legacy_archive  the same for the format before torch 1.6, which is not a zip
pt_file         one file in either format: its tree, where its tensors are, and another tree for it
window          a range of a file, which may be an archive inside it
unpickle        bytes -> tree; runs nothing, imports nothing
pickle_machine  the opcodes of a pickle, on a stack with limits
pickle_values   what a pickle can hold besides plain Python values, and a walk over all of a tree
globals         the names in a pickle that stand for tensors and containers
hashable        which values may be keys
tensors         the tensors in a tree, also where torch wrapped them
unread          the tensors whose bytes are not moved, by what they are
pickles         tree -> bytes that torch and pickle load
archive_layout  where every byte of a new archive goes
"""
