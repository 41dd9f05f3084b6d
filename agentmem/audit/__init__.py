"""Recording what enters a session from outside, and playing it again."""
