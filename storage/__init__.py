"""Where memory lives: the archive in SQL, and the tiers derived from it.

`store` opens a file, `archive` is everything of one user, `vector` and `words` find segments in it.
Knows nothing of models, prompts or policies.
"""
