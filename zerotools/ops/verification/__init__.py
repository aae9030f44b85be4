"""Whether a checkpoint is whole: its structure, the bytes of its files, what its numbers mean.

checkpoint_files  which files belong to it, and the archives in them
claims            which bytes of a file are elements of which tensor
file_scan         every byte of the files once: CRC-32s, values that are not finite
verify            all checks together, and what they come to
report            the documented JSON form
"""
