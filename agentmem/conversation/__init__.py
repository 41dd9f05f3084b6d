"""One conversation: its turns, the tools called in them, what is pinned, and its KV in between.

Knows a memory and a model; not how either was opened, nor who reads the events.
"""
