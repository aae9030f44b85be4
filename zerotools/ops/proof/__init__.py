"""What `--verify` of the commands that write proves, with the checks of `zerotools verify`.

source_proof   the bytes that an output is made of are those that were saved
output_proof   the files that were written are the cast of their source
output_record  what these files hold, as the manifest beside the output and in its marker
"""
