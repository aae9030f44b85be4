"""How clients come in, before any request of theirs is looked at.

listen        the Unix socket
tcp, tokens   an address, where the configuration has one: who may use it, and TLS
connections   how many, and how slow
connection_shares  how many of them one user may have
rate          how often
"""
