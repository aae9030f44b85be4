"""The listeners: how clients connect, before any request is read.

listen             the Unix socket
tcp, tokens        an address, if the configuration has one: its tokens, and TLS
connections        limits on their number and slowness
user_connections   limits of each user
request_rate       the rate of requests
trim_memory        returns memory after many clients have left
"""
