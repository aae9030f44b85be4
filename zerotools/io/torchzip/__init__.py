"""torch.save archives: the zip container and the pickle in it, read and written without torch.

directory  where each record of the zip lies
values     what a pickle can hold beside plain Python values
unpickle   bytes -> tree; runs nothing, imports nothing
pickles    tree -> bytes that torch and pickle load
archive    a zip and its pickle together: storages by key
legacy     the same of the format before torch 1.6, which is not a zip
torchfile  one file in either format: its tree, and where its tensors lie
tensors    the tensors in a tree, also where torch wrapped them
unread     the tensors whose bytes are not moved, by what they are
lay_out    where every byte of a new archive goes
"""
