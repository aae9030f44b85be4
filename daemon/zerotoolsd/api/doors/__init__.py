"""The listeners: how clients connect, before any request is read.

listen        the Unix socket
tcp, tokens   an address, if the configuration has one: its tokens, and TLS
connections   limits on their number and slowness
connection_shares  limits of each user
rate          the rate of requests
"""
