"""Whether a checkpoint is whole: its structure, the bytes of its files, what its numbers mean.

checkpoint_files     which files belong to it, and the archives in them
records              the records of these archives, and the CRC-32 that each should have
claimed_bytes        which bytes of a file are elements of which tensor
file_scan            every byte of the files once: CRC-32s, values that are not finite
replicas             whether copies of one tensor are equal
cast_masters         whether every weight is the cast of its master
digests              the tree of blocks over a tensor, and its digest
element_checks       masks, and whether a narrower type tells of every bit
digest_manifest      NAME.zerotools.json: digests of tensors and files
written_record       the record inside an output: the digests of its files
manifest_comparison  how two manifests differ
manifest_names       manifests of a tag, and of the run's directory around it
against              a checkpoint compared with a manifest or with another
findings             what is found, and what it comes to
verify               all checks together
verification_json    the documented JSON form
"""
