"""Notices about jobs, stored until they are delivered.

notices   one notice, and the table of all
"""
