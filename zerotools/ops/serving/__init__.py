"""Serve the output of a conversion over HTTP without writing it.

byte_source                make any range of bytes of an output file on request
model_server               the HTTP server
token_and_signature_check  a bearer token, or a signature with a key pair (SigV4)
http_answers               the files of the model as HTTP responses: ETags, ranges, conditions
answer_as_hub              requests of huggingface_hub, and plain downloads
answer_as_s3               the same files as a read-only S3 bucket
"""
