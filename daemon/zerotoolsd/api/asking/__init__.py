"""The steps that every request passes before its handler.

gate   rejects closed connections and too many requests
peer   identifies the caller, by the kernel or a token
asked  authorizes the request
turns  limits concurrent requests of one user
"""
