"""Makes an output directory: the staging directory, the journal, the marker, and the files without
tensors.

staging                a directory in which the output is made, until it gets its final name
write_to_store         makes an output in an object store, which has no rename; removes an output
output_marker          `.zerotools-output.json`: the files that a command wrote
manifest_path          the path of the manifest of digests next to an output
journal                lists the complete files of an unfinished output, for `--resume`
part_ledger            the journals of runs that write one output together
advice_to_continue     advice on how to continue an unfinished output
store_write_record     the record of a running write to a store
files_without_tensors  output files with known bytes, or with the bytes of another file

Imports `core` and `io.files`.
"""
