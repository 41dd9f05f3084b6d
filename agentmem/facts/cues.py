"""Words that say a thing changed, ended, or was so once; in five languages.

Tables and three questions about one clause or sentence. A cue alone changes nothing: it only makes
two statements that look alike a statement and its successor.
"""

from __future__ import annotations

import re

from agentmem.storage.terms import analyze

_CHANGES = (
    r"chang\w+|climbed|rose|risen|fell|fallen|grew|grown|jumped|sank|shrank|(?:down|up) to"
    r"|rebrand\w*|rebook\w*|switch\w*|mov(?:e|ed|es|ing)|relocat\w+|migrat\w+|transferr?\w*|reset"
    r"|renam\w+"
    r"|renew\w*"
    r"|replac(?:e|ed|es|ing)|swap\w*|trad(?:e|ed|ing)|updat\w+|correct(?:ed|ion)|reassign\w*"
    r"|reschedul\w+|postpon\w+"
    r"|push(?:ed|ing)?|shift(?:ed|s)?|delay\w*|extend\w*|bump\w*|brought forward|pull\w* forward"
    r"|rais\w+"
    r"|upped|increas\w+|lower\w*|reduc\w+|dropped|cut|went up|went down|gone up|gone down|ported"
    r"|upgrad\w+|downgrad\w+|convert\w+|turn(?:ed|s) out|took over|taken over|overtaken|becom\w+"
    r"|became|set|put|doubled|halved|reissued?"
    r"|(?:gave|handed|passed)(?: \w+){1,4}? to(?= (?:(?:Mrs?|Ms|Dr)\.|(?-i:[A-Z])))"
    r"|promoted|superseded|worked up|revis\w+|amend\w+|adjust\w+"
    r"|geändert|gewechselt|umgezogen|verschoben|verlegt|ersetzt|changé\w*|déménagé"
    r"|déplacé\w*|reporté\w*|remplacé\w*|cambi\w+|mudad\w+|movid\w+|reemplaz\w+"
)
_TAKES = r"issued|joined|started|took up|taken up|bought|adopted|hired|chose|picked"
_NOW = (
    r"now|nowadays|no,? wait|misread|mistaken|i meant|better|fresh|different|wrong|out of date"
    r"|outdated|issued|slipped|hired"
    r"|gone|going to be|ever since|these"
    r" days|currently|at the moment|from (?:now on|today|tomorrow)|since|my mistake"
    r"|from this \w+ on|as of|new"
    r"|newest|latest|actually|scratch that|forget|correction|in fact|after all|again|really|finally"
    r"|from (?:mon|tues|wednes|thurs|fri|satur|sun)day|starting|effective|lately|by now|anymore"
    r"|any more"
    r"|any longer|already|in the end|change of plans?"
    r"|rather than|instead|neu\w*|statt|nouve(?:au|lle)\w*|nouvel|au lieu|nuev\w+|jetzt|nun"
    r"|inzwischen|mittlerweile|ab sofort|seit|doch|désormais|maintenant|dorénavant|en fait"
    r"|ahora|ya no|desde|en realidad|actualmente"
)
_UNSPACED = r"现在|改[到成为]|换成|搬[到去]|更新|其实|不再|变成|变了|新的"
_UPDATES = re.compile(rf"\b(?:{_CHANGES}|{_NOW})\b|{_UNSPACED}", re.IGNORECASE)
CHANGED = re.compile(rf"\b(?:{_CHANGES}|{_TAKES})\b|改[到成为]|换成|搬[到去]", re.IGNORECASE)

_ENDS = re.compile(
    r"\b(?:no longer|not .{0,40}\b(?:any ?more|any longer)|n['’]t .{0,40}\b(?:any ?more|any"
    r" longer)|(?<!the )(?<!my )(?<!on )left|leaving"
    r"|quit|resigned|retired|died|closed|shut down|gave up|given up|stopped|sold|cancelled"
    r"|canceled|broke"
    r"|broke up|split up|moved away|(?:is|['’]s|are) over|ran away|stepped down|gone off"
    r"|(?-i:over (?=[A-Z]))|is"
    r" history|deleted|lost|stolen"
    r"|expired|finished|traded|handed in|went on leave|got promoted|used to"
    r"|nicht mehr|kein\w* mehr|n['’e] ?.{0,30}\bplus|ya no|dejé|früher)\b|不再|不是了",
    re.IGNORECASE,
)
_NEGATES = re.compile(
    r"\b(?:isn['’]t|aren['’]t|wasn['’]t|is not|are not|am not|don['’]t|doesn['’]t|can['’]t|is ill"
    r"|is sick|is too|too"
    r" expensive|fully booked|flooded)\b|['’]m not\b",
    re.IGNORECASE,
)
_ADDS = re.compile(
    r"\b(?:also|too|as well|a second|(?:my|our) other|both|besides|in addition|auch|außerdem"
    r"|aussi|également|también"
    r"|además)\b|也|还有",
    re.IGNORECASE,
)
_REPLACES = re.compile(
    r",\s+(?:and\s+)?not\s+(?=(?:the|my|our|an?|in|at|on)\b|\d|(?-i:[A-Z]))|\b(?:instead of"
    r"|rather than|in place of|statt"
    r"|anstatt|au lieu d\w+|plutôt que|en lugar de"
    r"|en vez de)\s+"
    r"|\b(?:from|von|de)\s+(?=\S+(?:\s\S+){0,3}\s(?:to|auf|zu|à|a)\s)",
    re.IGNORECASE,
)
_FORMER = re.compile(
    r"\bused to (?!(?:it|him|her|that|this|the|being)\b)|\b(?:formerly|previously|back then"
    r"|back in the day|once upon a time|at one time|in those days|in"
    r" the past"
    r"|(?:was|were) (?:once|formerly|previously|originally)|once (?:was|were|lived|worked)"
    r"|(?:some |many |\d+ )?years ago|as a (?:child|kid|teenager|student)|when i was|(?:my|our"
    r"|['’]s) (?:old|former|previous|ex)"
    r"(?! (?:friend|man|lady))|for (?:\w+ )?(?:years|months|ages|a long time) .{0,60}(?:was"
    r"|were))\b"
    r"|\b(?:was|were) .{0,60}\b(?:before|until|till)\b"
    r"|\b(?:früher|damals|ehemals|autrefois|jadis|antes|antiguamente|solía)\b|以前|曾经|过去",
    re.IGNORECASE,
)
_CUE_TERMS = frozenset(
    analyze(
        "change changed switch switched move moved moving relocate relocated migrate migrated"
        " transfer"
        " transferred reset rename renamed renew renewed replace replaced replacement swap"
        " swapped trade"
        " traded update updated correct corrected correction reassign reassigned reschedule"
        " rescheduled"
        " postpone postponed push pushed shift shifted delay delayed extend extended bump bumped"
        " raise"
        " raised up upped increase lower lowered reduce reduced drop dropped cut went gone turn"
        " turns"
        " turned become became instead rather join joined took take taken now nowadays day days"
        " current currently moment since new newest latest actual actually scratch forget fact"
        " really"
        " final finally start starting lately anymore longer already end plan plans heads back"
        " thing stuff think believe"
        " got get"
        " gave give given set put want ugh oh please use used us called call name named finish left"
        " quit retired closed sold cancelled broke gone today last week weekend year month ago"
        " know remember"
        " told tell say says said quick note record way also fyi hey ok okay well"
        " s'appelle appelle c'est j'ai maintenant heißt heisst llama reads read going go note"
        " mein meine meinen meinem meiner ist sind der die das den dem"
        " im am auf ich wir habe hat und nicht zu es ein eine le la les mon ma mes est un une du"
        " old former previous ex des je el los las mi mis está una del se de en jetzt neu neue"
        " neuer neuen seit"
        " désormais ahora"
    )
)

_HAPPENED = re.compile(
    r"\b(?!(?:need|feed|bed|red|hundred|indeed|speed|seed)\b)\w{2,}ed\b|\b(?:rang|went|got|said"
    r"|told|gave|took"
    r"|found|came|made|lost|sold|broke|left|began|ran|fell|met|put|did|had|quit|shut|bought|grew"
    r"|drew"
    r"|swapped|won|spoke|wrote|chose|stole|stolen|forgot|hurt|sent|brought|woke)\b"
    r"|(?:\b(?:has|have)|['’]ve)\s+\w+",
    re.IGNORECASE,
)


def happened(clause: str) -> bool:
    """Whether a clause tells of something that was done or came about."""
    return _HAPPENED.search(clause) is not None


def updates(sentence: str) -> bool:
    """Whether a sentence says that something is otherwise now."""
    return _UPDATES.search(sentence) is not None


def adds(sentence: str) -> bool:
    """Whether a sentence says that something holds besides something else."""
    return _ADDS.search(sentence) is not None


def changes(clause: str) -> bool:
    """Whether a clause has a verb of change, whose end is what it changed to."""
    return CHANGED.search(clause) is not None


def ends(clause: str) -> bool:
    """Whether a clause says that something is over."""
    return _ENDS.search(clause) is not None


def denies(clause: str) -> bool:
    """Whether a clause says what is over or not so, and nothing of what is."""
    return ends(clause) or _NEGATES.search(clause) is not None


def replaced(sentence: str) -> re.Match[str] | None:
    """Where a sentence names what something else took the place of ("instead of")."""
    return _REPLACES.search(sentence)


def is_former(sentence: str) -> bool:
    """Whether a sentence speaks of the past only."""
    return _FORMER.search(sentence) is not None


def tells(term: str) -> bool:
    """Whether a term says what a sentence is about: cues do not."""
    return term not in _CUE_TERMS
