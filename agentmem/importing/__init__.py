"""Reading files into an archive: as data, or as it was where an export is trusted.

Knows files and the archive; nothing of a window, a session that is open, or a model.
"""
