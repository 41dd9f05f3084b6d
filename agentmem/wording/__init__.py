"""Reading texts without a model: their sentences and dates, what they ask and tell, in whose words.

Knows nothing of memory, or of what is made of the texts.
"""
