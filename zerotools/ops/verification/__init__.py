"""Checks that a checkpoint is whole: its structure, the bytes of its files, its numbers.

checkpoint_files     its files, and the archives in them
records              the records of these archives, and the CRC-32 that each should have
claimed_bytes        the bytes of a file that are elements of tensors
file_scan            every byte of the files once: CRC-32s, values that are not finite
replicas             a check that copies of one tensor are equal
cast_masters         a check that every weight is the cast of its master
digests              the tree of blocks over a tensor, and its digest
element_checks       masks, and a check whether a narrower type keeps every bit
scale_checks         a check that scales of quantised weights are meaningful
manifests            digests that were recorded before, and the difference of two manifests
against              a checkpoint compared with a manifest or with another
findings             findings, and their verdict
portion              the share of one of several runs
all_checks           the checks, one after another
verify               the verification and its result
verification_json    the documented JSON form
"""
