"""Finding what was said, by meaning and by words, and showing it in pages.

Knows indexes and segments; not the window, nor what becomes of what is found.
"""
