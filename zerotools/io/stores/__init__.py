"""Checkpoints in object stores, as paths and open sources like local ones.

store_path        a path that is an object, or a directory of objects; writing by path
parse_url         a path from the user's text, which may be a URL
remote_source     an object open for reading: small reads in blocks, large ones in parallel
store_listing     the contents of directories, with few listings, cached for the process
store_interface   the interface of a store: list, read a range, put, upload, delete
s3_gs_azure_http  S3, Google Cloud Storage, Azure Blob Storage and HTTP servers, by obstore
hub_files         a repository of the Hugging Face Hub, by huggingface_hub
store_errors      errors of a store, in a sentence without credentials
"""
