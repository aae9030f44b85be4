"""Whether a checkpoint is whole: its structure, the bytes of its files, what its numbers mean.

checkpoint_files     which files belong to it, and the archives in them
records              the records of these archives, and the CRC-32 that each should have
claimed_bytes        which bytes of a file are elements of which tensor
file_scan            every byte of the files once: CRC-32s, values that are not finite
replicas             whether copies of one tensor are equal
cast_masters         whether every weight is the cast of its master
digests              the tree of blocks over a tensor, and its digest
element_checks       masks, and whether a narrower type tells of every bit
scale_checks         whether scales of quantised weights mean something
manifests            digests that were written down before, and how two manifests differ
against              a checkpoint compared with a manifest or with another
findings             what is found, and what it comes to
portion              what one of several runs checks
all_checks           the checks, one after another
verify               what is verified, and what comes of it
verification_json    the documented JSON form
"""
