"""Check that a checkpoint is complete and undamaged: its structure, the bytes of its files, its
numbers.

verify                   `zerotools verify`: all checks in order
divide_checks            the files and tensors that one of several runs checks
checkpoint_files         the files of a checkpoint, and the checksums in them
file_scan                read every byte once: check checksums, count values that are not finite
values_stored_twice      check that copies of a tensor are equal, and weights casts of masters
value_checks             find impossible values, and scales that cannot be used
tensor_digests           the digest of a tensor
digest_manifest          NAME.zerotools.json with the digests, and the digests inside an output
manifest_next_to_output  replace the digests next to an output
compare_manifest         compare a checkpoint with a manifest, or with another checkpoint
verification_result      the faults that were found, the verdict, and its JSON
verify_page_data         the values that the page of a verification shows
"""
