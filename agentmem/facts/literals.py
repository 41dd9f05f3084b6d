"""What in a text is written like a value: a number, a time, a date, an amount, a name.

Told from prose by how it is written, so that values of sentences never seen before are found too.
What a value means is not known here, nor which of several a sentence gives.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

ValueKind = Literal["time", "date", "money", "measure", "number", "ordinal", "name", "words"]

MONTH = (
    r"(?:jan(?:uary)?|feb(?:ruary)?|mar(?:ch)?|apr(?:il)?|may|june?|july?|aug(?:ust)?"
    r"|sept?(?:ember)?"
    r"|oct(?:ober)?|nov(?:ember)?|dec(?:ember)?|januar|februar|märz|mai|juni|juli|oktober|dezember"
    r"|janvier|février|mars|avril|juin|juillet|août|septembre|octobre|novembre|décembre|enero"
    r"|febrero"
    r"|marzo|abril|mayo|junio|julio|agosto|septiembre|octubre|noviembre|diciembre)"
)
_WEEKDAY = (
    r"(?:(?:mon|tues|wednes|thurs|fri|satur|sun)days?|montags?|dienstags?|mittwochs?|donnerstags?"
    r"|freitags?|samstags?|sonntags?|lundi|mardi|mercredi|jeudi|vendredi|samedi|dimanche|lunes"
    r"|martes"
    r"|miércoles|jueves|viernes|sábado|domingo)"
)
_UNIT = (
    r"(?:%|percent|prozent|mg|µg|g|kg|kilos?|grams?|pounds?|lbs?|km|kilomet(?:er|re)s?|miles?|cm"
    r"|met(?:er|re)s?"
    r"|ml|lit(?:er|re)s?|hours?|minutes?|degrees?|people|years?|Stunden|Minuten)"
)
_MONEY = r"(?:euros?|eur|dollars?|usd|chf|francs?|gbp|yen|bucks|€|\$|£)"
_NUMBERED = r"room|stop|platform|gate|spot|number|floor|line|bus|hall|seat|unit|plot|port|Raum"
_HAN = "一二三四五六七八九十"
_LITERALS: tuple[tuple[ValueKind, re.Pattern[str]], ...] = (
    (
        "time",
        re.compile(
            r"\b\d{1,2}[:h]\d{2}\b(?:\s?[ap]\.?m\b)?|\b\d{1,2}\s?[ap]\.?m\b"
            r"|\b\d{1,2}\s?(?:o'clock|Uhr)\b|[上下]午.{0,3}点",
            re.IGNORECASE,
        ),
    ),
    (
        "date",
        re.compile(
            rf"\b{MONTH}\s+(?:the\s+)?\d{{1,2}}(?:st|nd|rd|th)?\b(?:,?\s+\d{{4}}\b)?"
            r"|\b(?:the\s+)?\d{1,2}(?:st|nd|rd|th|\.)?\s+(?:of\s+|de\s+)?"
            rf"{MONTH}\b(?:\s+\d{{4}}\b)?"
            r"|\b\d{4}-\d{2}-\d{2}\b|\b\d{1,2}[./]\d{1,2}[./]\d{2,4}\b"
            rf"|\b{_WEEKDAY}\b"
            rf"|(?:周|星期|礼拜)[{_HAN}日天]|[\d{_HAN}]+月[\d{_HAN}]+[日号]",
            re.IGNORECASE,
        ),
    ),
    (
        "money",
        re.compile(rf"[€$£]\s?\d[\d.,]*\d|[€$£]\s?\d|\b\d[\d.,]*\s?{_MONEY}", re.IGNORECASE),
    ),
    ("measure", re.compile(rf"\b\d[\d.,]*\s?{_UNIT}(?!\w)", re.IGNORECASE)),
    (
        "ordinal",
        re.compile(
            r"\b\d{1,3}(?:st|nd|rd|th)\b|\b(?:first|second|third|fourth|fifth|sixth|seventh|eighth"
            r"|ninth|tenth|eleventh|twelfth|ground)\s+(?:floor|grade|year)\b"
            rf"|[{_HAN}\d]+楼",
            re.IGNORECASE,
        ),
    ),
    (
        "number",
        re.compile(
            rf"[\w.+-]+@[\w-]+\.[\w.]*\w|\b(?i:{_NUMBERED})\s+(?=[\w-]*\d)[\w-]+"
            rf"|\b(?i:{_NUMBERED}|row|section|block|terminal|lane|wing|zone)\s+[A-Z]\b"
            r"|\b(?-i:[A-Z]{1,3}-[A-Z]{1,2}\s\d{1,4})\b"
            r"|(?<![\w-])(?=[\w./-]*\d)\w(?:[\w./-]*\w)?(?:\s\d{3,})*"
        ),
    ),
)
CAPITAL = r"(?-i:[A-ZÀ-Þ])[\w'’.&-]*\w"
_NAME = re.compile(
    rf"(?:(?:Dr|Mrs?|Ms|Prof)\.?\s+|Professor\s+|The\s+)?{CAPITAL}(?:\s+(?:of|de|van|von"
    rf"|du)\s+{CAPITAL}|\s+(?:&\s+)?{CAPITAL})*"
)
_SOMEBODYS_PLACE = re.compile(
    rf"(?:(?<=\bat )|(?<=\bin )|(?<=\bto ))(?:(?:Dr|Mrs?|Ms)\.\s+)?{CAPITAL}(?<=['’]s)\s+[a-z]+"
    r"(?=\s*(?:[.,;!?]|$|now\b))"
)
NO_NAME = frozenset(
    "i i'm i’m i've i’ve i'll i’ll i'd we we're we've he she it it's they you my our the a an"
    " this that there"
    " his her their from since these by in on at to for with ugh oh hey ok okay yes no dr mr mrs"
    " ms prof"
    " january february march april june july august september october november december"
    " new now please update correction actually heads scratch forget turns change ich wir mein"
    " meine das"
    " der die je j'ai mon ma mes le la les mi mis el los las".split()
)


@dataclass(frozen=True, slots=True)
class Value:
    """What a statement gives: its text as it stands in the sentence, and what it looks like."""

    text: str
    kind: ValueKind


def literals(text: str) -> list[tuple[int, Value]]:
    """Everything in a text that is written like a value, by place; names last of equals."""
    found: list[tuple[int, Value]] = []
    taken = [False] * len(text)
    for kind, pattern in _LITERALS:
        for match in pattern.finditer(text):
            if not any(taken[match.start() : match.end()]):
                taken[match.start() : match.end()] = [True] * (match.end() - match.start())
                found.append((match.start(), Value(match.group().strip(), kind)))
    for match in _SOMEBODYS_PLACE.finditer(text):
        taken[match.start() : match.end()] = [True] * (match.end() - match.start())
        found.append((match.start(), Value(match.group(), "name")))
    for match in _NAME.finditer(text):
        if any(taken[match.start() : match.end()]) or _is_no_name(match, text):
            continue
        found.append((match.start(), Value(re.sub(r"['’]s$", "", match.group()), "name")))
    return _joined(sorted(found, key=lambda one: one[0]), text)


def _joined(found: list[tuple[int, Value]], text: str) -> list[tuple[int, Value]]:
    """The same, what makes one value put together: "Tuesday the 9th", "51 Elm Road", "Pixel 6"."""
    whole: list[tuple[int, Value]] = []
    for at, value in found:
        if whole:
            start, last = whole[-1]
            end = at + len(value.text)
            if text[start + len(last.text) : at].strip(" ,") in ("", "the") and (
                (last.kind == value.kind == "date")
                or (last.kind == "number" and value.kind == "name")
                or (
                    last.kind == "name"
                    and value.kind == "number"
                    and len(value.text) < 4
                    and not re.match(r"\s+(?-i:[a-z])", text[end:])
                )
            ):
                kind: ValueKind = "date" if value.kind == "date" else "name"
                whole[-1] = start, Value(text[start:end], kind)
                continue
        whole.append((at, value))
    return whole


def _is_no_name(match: re.Match[str], text: str) -> bool:
    if match.group().casefold() in NO_NAME or re.search(r"['’]s?$", match.group()):
        return True
    # A word that begins a sentence is capitalized whatever it is.
    return match.start() == 0 and " " not in match.group().strip()


def kind_of(value: str | None) -> ValueKind | None:
    """How a value is written; None for none."""
    if not value:
        return None
    found = literals(f" {value}")
    kinds = {one.kind for _, one in found}
    written = sum(len(one.text) for _, one in found)
    if 2 * written < len(value):
        return "words"
    return "time" if "time" in kinds else max(found, key=lambda one: len(one[1].text))[1].kind
