"""Serve the output of a conversion over HTTP without writing it.

byte_source    make any range of bytes of an output file on request
model_server   the HTTP server
authorization  a bearer token, or a signature with a key pair (SigV4)
http_answers   the files of the model as HTTP responses, with ETags, ranges and conditions
hub_requests   requests of huggingface_hub, and plain downloads
s3_requests    the same files as a read-only S3 bucket
"""
