"""The steps that every request passes before its handler.

gate            rejects closed connections and too many requests
peer            identifies the caller, by the kernel or a token
authorize       authorizes the request
per_user_lock   limits concurrent requests of one user
"""
