"""The digests of a checkpoint that were written down before.

digest_manifest      NAME.zerotools.json: digests of tensors and files
written_record       the record inside an output: the digests of its files
manifest_names       manifests of a tag, and of the run's directory around it
manifest_comparison  how two manifests differ
"""
