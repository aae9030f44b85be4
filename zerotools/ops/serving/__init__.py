"""A conversion that is read over the network, and never written.

byte_source     any range of bytes of an output's files, made on request
served_model    the files of a model with their sizes, types and ETags
access          authorization: a bearer token, or a signature with a key pair (SigV4)
answer          the response, before any of it is sent
requests        ranges and conditions of a request, as in RFC 9110
plain_pages     the files by their names, and the requests of huggingface_hub
bucket_pages    the same files as a bucket: the read-only part of S3
server          the HTTP server
"""
