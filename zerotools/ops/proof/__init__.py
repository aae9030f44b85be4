"""The proofs of `--verify` in the commands that write, with the checks of `zerotools verify`.

source_proof   the source's bytes are the saved ones
output_proof   the written files are the cast of their source
output_record  digests of these files, in the manifest next to the output and in its marker
"""
