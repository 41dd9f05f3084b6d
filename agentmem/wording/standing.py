"""Standing instructions and preferences: what a message asks for that holds from then on.

"From now on answer in French" must be in view for every later reply, and no search for what a later
message says would ever find it. A sentence is standing where the speaker tells the assistant how to
behave and says that it lasts, or says what they themselves need or like for good. A request for one
reply, a question, a quotation and what somebody else said are not. What has none of these forms may
still be meant so: `wording.standing_odds`. It reads one text and no memory.
"""

from __future__ import annotations

import re

from agentmem.wording.clauses import sentences

_REPLY = (
    r"(?:answer|reply|respond|write|speak|talk|explain|use|include|add|give|list|show|cite|call"
    r"|address"
    r"|refer|treat|assume|ask|double-check|check|put|keep|format|translate|summari[sz]e|mention"
    r"|recommend"
    r"|suggest|send|share|start|begin|end|say|tell|repeat|apologi[sz]e|lecture|judge|remind|avoid"
    r"|skip"
    r"|stick|provide|spell|sign|greet|make|be|act|round|convert|quote|offer|print|return|label"
    r"|name)"
)
_LASTING = (
    r"(?:from (?:now|today|here|this point|this moment) on(?:wards?|ward)?|from here on(?: out)?"
    r"|going forward"
    r"|henceforth|in (?:the )?future|for (?:the future|future reference|all future \w+)|until"
    r" further notice"
    r"|by default|as a rule|in every \w+|at all times|every (?:single )?time|each time|every reply"
    r"|in all (?:your )?\w+)"
)
_STRONG = rf"(?:always|never(?: ever)?|{_LASTING})"
_YOU = r"\b(?:you|your|me|my)\b"
_NOT_STANDING = re.compile(
    r"[?？]|\b(?:i|we|it|she|he|they|people|one|everyone|cats) (?:always|never)\b(?! want)"
    r"|^\W*you (?:always|never)\b|\bremind me (?:never to|to never)\b"
    r"|\bjust this once\b|\bthis time\b|\bfor this (?:reply|answer|one|question|message)\b|\bjust"
    r" kidding\b"
    r"|\btonight\b|\b(?:for )?today,|\bthe next (?:question|answer|message|reply)\b",
    re.IGNORECASE,
)
_SOMEBODY_ELSE = re.compile(
    r"\b(?:said|says|say:|saying|told|tells|asked|asks|wrote|writes|reads?|heard|keeps telling"
    r"|according to"
    r"|used to say|insists|preaches|the (?:sign|manual|recipe|guide|policy|page|poster|email"
    r"|rules?|function"
    r"|error|system prompt|teacher|boss|professor|text|website|book|doctor)\b|(?:sagt\w*|meinte"
    r"|dit|disait"
    r"|dice|dijo)\b)|老板说|[他她]说|说要|[妈爸]说",
    re.IGNORECASE,
)
_DATA = re.compile(
    r"^\s*(?:[>{\[<#|`*]|\w+\s*[:=]\s*[{\[\"']|(?:system|assistant|user|tool|bot)\w*\s*:)|</|[{}]|\w_\w",
    re.IGNORECASE,
)
_QUOTED = re.compile(r"[\"“”„«»「」].*[\"“”„«»「」]|(?:^|\s)'\w[^']{6,}'(?:\s|[.,!]|$)")
_A_WORD = re.compile(r"[\"“”„«»][\w/ -]{1,20}[\"“”„«»]|(?<!\w)'[\w/ -]{1,20}'(?!\w)")
_ASKS_OR_QUOTES = re.compile(rf"[?？]|{_QUOTED.pattern}")
_LEAD = (
    r"^\W*(?:(?:please|ok(?:ay)?|hey|also|oh|and|so|well|btw|by the way|one more thing|note"
    r"|actually|just|hi"
    r"|thanks|but|listen|look|right|bitte|s'il te pla[iî]t|por favor)\b[\s,:.!-]*)*"
)


def _pattern(text: str) -> re.Pattern[str]:
    return re.compile(text, re.IGNORECASE)


_ABOUT_ME = (
    r"(?:i['’ ]?a?m\b|i have\b|i['’]ve\b|i can['’]?t|i cannot|i don['’]?t|i do not|i (?:hate|love"
    r"|like|dislike"
    r"|prefer|need|want|go by|use|eat|drink|live|work|only|never|always)|my\b|we\b|our\b|you"
    r" (?:should|must))"
)
_STANDING = tuple(
    map(
        _pattern,
        (
            # Told to the assistant, and lasting.
            rf"{_LEAD}(?:always|never(?: ever)?)\s+(?!gonna|going|mind"
            rf"|have)(?:\w+\s+)?{_REPLY}\b(?! (?:mind|gonna|again))",
            rf"{_LEAD}(?:always|never(?: ever)?)\s+(?!gonna)\w+.*{_YOU}",
            rf"{_LEAD}(?:please\s+)?don['’]?t\s+(?:ever|you ever)\b",
            rf"{_LEAD}{_LASTING}\b[,:]?\s*(?:please\s+|always\s+|never\s+|do not\s+|don['’]t\s+"
            rf"|only\s+|just\s+|no\s+more\s+)*"
            rf"(?:{_REPLY}\b|no\b|you\b|i(?:['’]d| would)? (?:want|prefer|like)\b|i use\b|i go"
            rf" by\b|i['’]m an?\b|my (?:name|pronouns)\b)",
            rf"{_LEAD}(?:{_REPLY}|stop|don['’]?t)\b.*\b(?:{_STRONG}|ever again|anymore|any more)\b",
            rf"{_LEAD}(?:{_REPLY}|don['’]?t|no)\b.*\b(?:from now on|anymore|going forward|in"
            rf" (?:the )?future|ever)\b",
            rf"{_LEAD}stop (?:using|calling|saying|adding|repeating|starting|ending"
            rf"|apologi[sz]ing|giving|sending)\b",
            rf"{_LEAD}(?:whenever|every time|each time|any time|if|when)\s+(?:i"
            rf"|you)\b[^,]*,\s*(?:please\s+|always\s+|never\s+|don['’]t\s+|just\s+|only\s+)*"
            rf"(?:{_REPLY}\b(?! (?:i|to)\b)|i mean\b|it means\b)",
            rf"{_LEAD}you (?:should|must|have to|need to|are to|shall|may|can)\s+(?:always|never"
            rf"|only)\b",
            rf"{_LEAD}make sure (?:that )?you (?:always|never)\b|{_LEAD}make sure to (?:always"
            rf"|never)\b",
            rf"{_LEAD}it['’]s important (?:to me )?that you (?:always|never)\b",
            r"\bi(?:['’]d)? (?:want|need|like|would like|expect|appreciate it if"
            r"|appreciate)\b.*\b(?:you|your|me|answers|replies)\b.*\b(?:always|never|from now on"
            r"|going forward|in future|in the future)\b",
            r"\b(?:i(?:['’]d)?|i would) (?:always|only) want\b",
            r"\bi(?:['’]d| would) (?:like|prefer|want|love)(?: it if)? (?:you|for you) (?:to"
            r" (?:address|call|always|never|stop|keep|use|avoid|be|speak|talk)|used?|didn['’]t"
            r"|always|never|called|kept|stopped|to refer)\b",
            r"\bi['’]d rather you\b|\bi(?:['’]d| would) prefer (?:it )?if you\b",
            rf"{_LEAD}(?:don['’]?t|do not|never|no)\s+(?:use|suggest|recommend|mention|call"
            rf"|address|include|start|add|give|show|bring up|talk about|ask|offer"
            rf"|write)\b.*(?:\bwith me\b|\bto me\b|\bme\b(?! (?:a|the|that|this)\b)|, i(?:['’]m|"
            rf" am)\b|\bin your\b)",
            # What the speaker asks to be remembered.
            rf"{_LEAD}(?:always |do )?(?:keep in mind|bear in mind|remember|don['’]?t forget|do"
            rf" not forget|make a note|note for the future|keep remembering|take note)\b(?:"
            rf" this)?[\s,:]*(?:please\s+)?(?:always\s+)?(?:that\s+|:\s*)?,?\s*{_ABOUT_ME}",
            r"\b(?:keep|bear) that in mind\b(?! for later)|\bplease remember (?:that|this)\b"
            r"|\bjust so you remember\b",
            r"\bfor future reference\b.*\bi\b|\bmake a note (?:that|of)\b",
            # What the speaker likes of replies, and in general.
            r"\bi (?:really |absolutely |strongly |generally |usually )?prefer (?:that |it when "
            r"|when |if )?(?:you\b|your\b)",
            rf"{_LEAD}i (?:really |absolutely |strongly |generally |usually |much )?prefer"
            rf" (?!(?:the|this|that|an?|to|not to|my|going)\b)(?:\w+ ){{0,3}}\w+(?: (?:to|over"
            rf"|rather than) (?:\w+ ){{0,2}}\w+)?\W*$",
            r"\bi (?:really |much )?prefer (?:to be|being) (?:addressed|called|spoken to|told|asked"
            r"|reminded|greeted)\b",
            r"\bmy preference is\b|\bi have a (?:strong )?preference for\b",
            r"\bi (?:really |absolutely |just )?(?:hate|dislike|can['’]t stand|don['’]t like|do"
            r" not like|love|like) (?:it )?when you\b(?! are well)",
            r"\bi (?:really )?(?:hate|dislike|don['’]t like) .*\bin your (?:answers|replies"
            r"|responses|messages|texts)\b",
            rf"{_LEAD}(?:call|address) me \w+(?: \w+)?,? (?:from now on|from here on|please"
            rf"|instead|always|going forward)\W*$",
            rf"{_LEAD}refer to .* as\b.*\bfrom (?:now|here) on\b",
            r"\bi only (?:want|accept|read|need) (?:answers|replies|responses)\b",
            r"\ball (?:of )?your (?:answers|replies|responses)\b.*\b(?:should|must|need|be|have)\b",
            # German.
            r"^\W*(?:bitte\s+)?(?:ab (?:jetzt|sofort|heute)|in zukunft|künftig|von nun an"
            r"|zukünftig)\b(?!.*\b(?:gehe|laufe|fahre|fahren|mache|werde|ich)\b)",
            r"^\W*(?:bitte\s+)?(?:antworte|schreib|sprich|rede|verwende|benutze|nutze|nenn|nenne"
            r"|sag|gib|erkläre?|zeig)\b.*\b(?:ab (?:jetzt|sofort|heute)|immer|stets"
            r"|nie(?:mals)?(?: wieder)?|künftig|in zukunft|keine\w*\b.*\bmehr)\b",
            r"\bmerk(?:e)? dir(?: bitte)?,? dass\b|^\W*(?:bitte\s+)?(?:denk|denke) (?:bitte"
            r" )?daran,? dass ich\b|\bvergiss (?:bitte )?nicht,? dass ich\b",
            r"^\W*ich (?:bevorzuge|mag lieber|hätte lieber|möchte lieber) (?!(?:das|den|die"
            r"|dieses|diesen)\b)|\bich (?:hasse|mag) es(?: nicht)?, wenn du\b",
            # French.
            r"^\W*(?:s'il te pla[iî]t,?\s+)?(?:à partir de maintenant|désormais|dorénavant|à"
            r" l'avenir)\b(?!,?\s*(?:je\b|j'|il|les\b|le\b|la\b|nous\b))",
            r"^\W*ne?['’ ]?\s?(?:m['’]appelle|utilise|me|parle|dis|réponds|mets|recommande"
            r"|mentionne)\w*\b.*\b(?:jamais|plus)\b",
            r"^\W*(?:réponds|utilise|écris|parle|donne|appelle)(?:-moi)?\b.*\b(?:toujours"
            r"|désormais|à partir de maintenant|à l'avenir)\b",
            r"^\W*(?:souviens-toi|rappelle-toi|n['’]oublie pas|garde en tête|retiens) (?:que|bien"
            r" que) (?:je|j['’]|mon|ma|mes)\b",
            r"^\W*je préfère (?!(?:la|le|cette|ce|l['’]|partir|aller)\b)|\bje (?:déteste"
            r"|n['’]aime pas) quand tu\b",
            # Spanish.
            r"^\W*(?:por favor,?\s+)?(?:a partir de ahora|de ahora en adelante|en (?:el )?futuro"
            r"|desde ahora)\b(?!,?\s*(?:voy|vamos|corro|los|las|el|la|yo)\b)",
            r"^\W*(?:por favor,?\s+)?nunca (?:me|uses|digas|menciones|respondas|recomiendes"
            r"|escribas)\b|^\W*no (?:me|uses|digas|menciones)\b.*\b(?:nunca|jamás|más)\b",
            r"^\W*(?:por favor,?\s+)?(?:responde|usa|escribe|habla|llámame)\b.*\b(?:siempre|a"
            r" partir de ahora|de ahora en adelante)\b",
            r"^\W*(?:recuerda|ten en cuenta|no olvides|acuérdate de) que (?:soy|tengo|no|me|mi"
            r"|vivo|prefiero)\b",
            r"^\W*prefiero (?!(?:el|la|este|esta|los|ir|quedarme)\b)|\b(?:odio|no me gusta)"
            r" (?:que|cuando) (?:me |uses|usas|digas|respondas)",
            # Chinese.
            r"(?:从现在起|从现在开始|今后|以后|从今以后)(?:请|不要|别|都|一律|用|回答|回复|叫)",
            r"^(?:请)?(?:永远|始终|总是|一直)(?:不要|别|用|使用|要|请)|^请(?:始终|一直|总是|永远)",
            r"^(?:请)?(?:记住|记得|别忘了)[，,]?(?:我|不要)",
            r"我(?:更喜欢|偏好|偏爱)(?!那|这|蓝|红|白|黑).*(?:回答|回复|答案|风格|语气|单位|格式)|我(?:不喜欢|讨厌)你",
        ),
    )
)


_NOTE = re.compile(
    r"^\W*(?:\w+\W+){0,3}?(?:remember|forget|keep in mind|bear in mind|note)\W+(?:that|this)?\W*",
    re.IGNORECASE,
)


def is_note(sentence: str) -> bool:
    """Whether a standing sentence only asks that a fact be remembered, as recall does anyway."""
    told = _NOTE.sub("", sentence, count=1)
    return told != sentence and not _is_standing(told)


def standing_instructions(text: str) -> list[str]:
    """The sentences of a text that by their form are instructions or preferences to be kept."""
    return [one for one in _told(text) if _is_standing(one)]


def may_stand(text: str) -> list[str]:
    """The sentences of a text that by their form could be meant so: none asks or quotes."""
    return [one for one in _told(text) if not _ASKS_OR_QUOTES.search(_A_WORD.sub("X", one))]


def _told(text: str) -> list[str]:
    """The sentences of a text that are no data."""
    lines = [line for line in text.split("\n") if not _DATA.search(line)]
    return [one for line in lines for one in sentences(line)]


def _is_standing(sentence: str) -> bool:
    # One quoted word is an example in an instruction; a quoted sentence is somebody else's.
    bare = _A_WORD.sub("X", sentence)
    if _QUOTED.search(bare) or _NOT_STANDING.search(bare) or _SOMEBODY_ELSE.search(bare):
        return False
    return any(pattern.search(bare) for pattern in _STANDING)


_TOPICS = tuple(
    map(
        _pattern,
        (
            r"\b(?:english|french|german|spanish|italian|dutch|portuguese|polish|russian|chinese"
            r"|japanese|korean"
            r"|turkish|arabic|deutsch|englisch|französisch|spanisch|français|anglais|allemand"
            r"|espagnol|español"
            r"|inglés|francés|alemán)\b|中文|英文|英语|法语|德语",
            r"\b(?:short|brief|concise|long|longer|shorter|detailed|sentences?|lengthy"
            r"|(?<!as )(?<!in )words|kurz\w*|lang|courtes?"
            r"|longues?|cort[ao]s?|larg[ao]s?)\b|简短|详细",
            r"\b(?:metric|imperial|units?|miles|kilometres|kilometers|einheiten|unités|unidades"
            r"|métric\w*"
            r"|métrique)\b|公制",
            r"\b(?:celsius|fahrenheit)\b",
            r"\b(?:call|address) me\b|\bmy name\b|\bi go by\b|\bnenn mich\b|\bm['’]appelle\b"
            r"|\bllám",
            r"\bemojis?\b|表情",
            r"\b(?:bullet|lists?|table|json|markdown|paragraphs?)\b",
            r"\b(?:formal|informal|casual|polite|slang|pirate|rhymes?|lowercase|uppercase)\b",
            r"\b(?:vegan|vegetarian|pescatarian|meat|omnivore|vegetarier\w*|vegano"
            r"|végétarien\w*)\b",
            r"\b(?:24-hour|12-hour|am/pm)\b",
            r"\b(?:euros?|dollars?|pounds?|currency)\b",
        ),
    )
)


def takes_the_place(newer: str, older: str) -> bool:
    """Whether a standing instruction replaces an older one: both are about one topic."""
    return any(topic.search(newer) and topic.search(older) for topic in _TOPICS)
