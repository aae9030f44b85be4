"""The proofs of `--verify` in the commands that write, with the checks of `zerotools verify`.

source_proof   the source's bytes are those that were saved
output_proof   the files that were written are the cast of their source
output_record  digests of these files, in the manifest next to the output and in its marker
"""
