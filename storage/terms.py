"""Text as the terms that word search counts: the same for what is stored and for what is asked.

English words are stemmed and its function words dropped; words of other languages stay whole. Runs
of a script written without spaces (and Korean, whose words carry their particles) become characters
and pairs of characters. Numbers and codes stay whole, and each part of a code is a term too. There
is no query syntax, so quotes and operators are only punctuation. Knows nothing of SQL or scores.
"""

from __future__ import annotations

import re
import threading
import unicodedata
from functools import lru_cache

import Stemmer

ANALYZER = 1
"""Version of this module's rules: terms stored under another one are made again."""

_MAX_TERM = 64
"""Characters of a term that count: a line of base64 is not a word."""

STOP_WORDS = frozenset(
    """a about above after again all also am an and any are aren't as at be because been before
    being below between both but by can can't could couldn't did didn't do does doesn't doing don't
    down during each few for from further get got had hadn't has hasn't have haven't having he
    he'd he'll he's her here here's hers herself him himself his how how's i i'd i'll i'm i've if
    in into is isn't it it's its itself just let's me more most my myself no nor not of off on
    once only or other our ours ourselves out over own same shan't she she'd she'll she's should
    shouldn't so some such than that that's the their theirs them themselves then there there's
    these they they'd they'll they're they've this those through to too under until up us very
    was wasn't we we'd we'll we're we've were weren't what what's when when's where where's which
    while who who's whom why why's will with won't would wouldn't you you'd you'll you're you've
    your yours yourself yourselves""".split()
)

UNSPACED = (
    "\u0e00-\u0e3a\u0e40-\u0e4e\u0e80-\u0ece\u0edc-\u0edf\u0f40-\u0fbc\u1000-\u103f\u1050-\u108f"
    "\u1100-\u11ff\u1780-\u17d3\u3005-\u3007\u3041-\u3096\u309d-\u30ff\u3105-\u312f\u31a0-\u31bf"
    "\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7a3\uf900-\ufaff\U00020000-\U0003ffff"
)
"""Letters that do not put spaces between words, as a regular expression's set has them: Thai, Lao,
Tibetan, Myanmar, Hangul, Khmer, kana, Bopomofo, Han."""
# Marks that `\w` does not hold but that belong to the word they stand in.
_MARKS = (
    "\u0300-\u036f\u0483-\u0489\u0591-\u05bd\u05bf\u05c1\u05c2\u05c4\u05c5\u05c7\u0610-\u061a"
    "\u064b-\u065f\u0670\u06d6-\u06dc\u06df-\u06e8\u06ea-\u06ed\u0711\u0730-\u074a\u07a6-\u07b0"
    "\u0900-\u0903\u093a-\u094f\u0951-\u0957\u0962\u0963\u0980-\u0983\u09bc-\u09cd\u09d7\u09e2"
    "\u09e3\u0a01-\u0a03\u0a3c-\u0a51\u0a70\u0a71\u0a81-\u0a83\u0abc-\u0acd\u0b01-\u0b03"
    "\u0b3c-\u0b57\u0b82\u0bbe-\u0bcd\u0c00-\u0c04\u0c3c-\u0c56\u0c81-\u0c83\u0cbc-\u0cd6"
    "\u0d00-\u0d03\u0d3b-\u0d4d\u0d81-\u0d83\u0dca-\u0ddf\u1ab0-\u1ace\u1dc0-\u1dff\u20d0-\u20f0"
)
_INVISIBLE = re.compile("[\u00ad\u200b-\u200f\u202a-\u202e\u2060-\u2064\u2066-\u2069\ufe0f\ufeff]")
_LETTER = f"(?:[^\\W{UNSPACED}]|[{_MARKS}])"
_WORD = f"{_LETTER}+(?:['\u2019]{_LETTER}+)*(?:\\+\\+|#)?"
_TOKEN = re.compile(
    f"(?P<unspaced>[{UNSPACED}]+)"
    f"|(?P<words>{_WORD}(?:[-._/:@,]{_WORD})*)"
    "|(?P<sign>[\u2600-\u27bf\U0001f300-\U0001faff])"
)
_THOUSANDS = re.compile(r"\d{1,3}(?:,\d{3})+(?:\.\d+)?")
_SEPARATORS = re.compile(r"[-._/:@,]")
_ENGLISH = re.compile(r"[a-z']+")

_stemmer = Stemmer.Stemmer("english")
_stemmer_lock = threading.Lock()


def analyze(text: str) -> list[str]:
    """The terms of a text, in order, repeated as they are; none holds white space."""
    plain = _INVISIBLE.sub("", unicodedata.normalize("NFKC", text).casefold())
    terms: list[str] = []
    for token in _TOKEN.finditer(unicodedata.normalize("NFKC", plain)):
        found = token.group()
        if token.lastgroup == "unspaced":
            terms += found
            terms += (found[at : at + 2] for at in range(len(found) - 1))
        elif token.lastgroup == "sign":
            terms.append(found)
        else:
            terms += _words(found)
    return terms


def _words(token: str) -> list[str]:
    """The terms of one token: a word, or words and numbers joined by punctuation."""
    if _THOUSANDS.fullmatch(token):
        return [token.replace(",", "")[:_MAX_TERM]]
    parts = _SEPARATORS.split(token)
    terms = [term for part in parts if (term := _term(part))]
    if len(parts) > 1 and any(character.isdigit() for character in token):
        terms.append(token[:_MAX_TERM])
    return terms


@lru_cache(maxsize=50_000)
def _term(word: str) -> str:
    """A single word as a term; empty for one that tells nothing."""
    word = word[:_MAX_TERM].replace("\u2019", "'")
    if word in STOP_WORDS:
        return ""
    if not _ENGLISH.fullmatch(word):
        return word
    with _stemmer_lock:  # one stemmer is not safe between threads
        stem: str = _stemmer.stemWord(word)
    return stem
