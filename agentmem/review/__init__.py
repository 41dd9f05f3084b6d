"""Freeing the window: when, who decides what leaves it, and what a model is shown and may answer.

What is decided here is carried out elsewhere; nothing of a turn or a conversation is known.
"""
