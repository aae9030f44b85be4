"""A conversion that is read over the network, and written nowhere.

byte_source     any range of bytes of an output's files, made as it is asked for
served_model    the files of a model with their sizes, types and ETags
access          who may ask: a bearer token, or a signature with a key pair (SigV4)
answer          what is answered, before any of it is sent
requests        ranges and conditions of a request, as RFC 9110 has them
plain_pages     the files by their names, and what huggingface_hub asks
bucket_pages    the same files as a bucket: the read-only part of S3
server          the HTTP server
"""
