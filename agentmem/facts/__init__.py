"""Facts: what sentences state, about what, and which statement took another's place."""
