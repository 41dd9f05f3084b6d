"""Carrying decisions out, taking them back, deleting for good, and saying why.

Who decides, and how, is not known here, nor any model but for the KV it keeps.
"""
