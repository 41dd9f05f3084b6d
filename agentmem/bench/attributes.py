"""What people state about themselves and others in a benchmark conversation.

Tables only: attributes with the wordings that state and ask them, owners, and values nobody could
guess. A paraphrase asks for the same thing and shares no content word with the statements.

`{whose}` is an owner in the possessive ("my sister's"), `{Whose}` the same with a capital.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

ValueKind = Literal[
    "digits4",
    "digits5",
    "town",
    "date",
    "time",
    "person",
    "animal",
    "cheese",
    "flower",
    "dessert",
    "instrument",
    "tree",
    "gem",
]


@dataclass(frozen=True, slots=True)
class Wording:
    """How values of a kind are stated and asked for.

    Args:
        verb: links an attribute to its value.
        infinitive: the same after "used to".
        question: asks plainly.
    """

    verb: str
    infinitive: str
    question: str


@dataclass(frozen=True, slots=True)
class Attribute:
    """One thing that can be stated of an owner.

    Args:
        noun: names it after a possessive ("locker code").
        kind: what its values are.
        paraphrase: asks for it in other words.
    """

    noun: str
    kind: ValueKind
    paraphrase: str


@dataclass(frozen=True, slots=True)
class Owner:
    """Whose attribute it is: the possessive, and the same person in other words ("" for none)."""

    possessive: str
    paraphrase: str = ""


_NUMBER = Wording("is", "be", "What is {whose} {noun}?")
_NAME = Wording("is called", "be called", "What is the name of {whose} {noun}?")

# Chosen so that a model of 135M parameters that sees the statement can answer the question.
WORDINGS: dict[ValueKind, Wording] = {
    "digits4": _NUMBER,
    "digits5": _NUMBER,
    "town": Wording("is in", "be in", "In which town is {whose} {noun}?"),
    "date": Wording("is on", "be on", "On which day is {whose} {noun}?"),
    "time": Wording("starts at", "start at", "At what time does {whose} {noun} start?"),
    "person": _NAME,
    "animal": _NAME,
    "cheese": _NAME,
    "flower": _NAME,
    "dessert": _NAME,
    "instrument": _NAME,
    "tree": _NAME,
    "gem": _NAME,
}

_PERSON = "What is the name of the person who "

ATTRIBUTES: tuple[Attribute, ...] = (
    Attribute("locker code", "digits5", "Which number opens {whose} cabinet at the gym?"),
    Attribute("alarm PIN", "digits4", "Which number silences {whose} burglar siren?"),
    Attribute("bike lock code", "digits4", "Which number opens the chain on {whose} cycle?"),
    Attribute("library code", "digits5", "Under which number can {whose} books be borrowed?"),
    Attribute("phone extension", "digits4", "Which number reaches {whose} desk at work?"),
    Attribute("suitcase code", "digits4", "Which number opens {whose} luggage?"),
    Attribute("parking permit code", "digits5", "Under which number may {whose} car stand there?"),
    Attribute(
        "theatre ticket code", "digits5", "Which number admits to {whose} evening at the play?"
    ),
    Attribute("parcel code", "digits5", "Under which number does {whose} package travel?"),
    Attribute("insurance code", "digits5", "Under which number does {whose} coverage run?"),
    Attribute("laptop code", "digits5", "Which number is stamped under {whose} computer?"),
    Attribute("safe code", "digits5", "Which number gives access to {whose} strongbox?"),
    Attribute(
        "bus pass code", "digits5", "Which number lets {whose} public transport run for a month?"
    ),
    Attribute("office", "town", "In which town does {whose} job take place?"),
    Attribute("birthplace", "town", "In which town did {whose} life begin?"),
    Attribute("holiday house", "town", "In which town does {whose} summer cottage stand?"),
    Attribute("storage unit", "town", "In which town is {whose} furniture kept?"),
    Attribute("wedding venue", "town", "In which town will {whose} marriage be celebrated?"),
    Attribute("boarding school", "town", "In which town were {whose} lessons as a child?"),
    Attribute("favourite beach", "town", "In which town does {whose} best-loved seaside lie?"),
    Attribute("birthday", "date", "On which day are {whose} candles blown out?"),
    Attribute("driving test", "date", "On which day is {whose} exam behind the wheel?"),
    Attribute("knee surgery", "date", "On which day is {whose} leg operation?"),
    Attribute("house move", "date", "On which day do {whose} boxes go to the new flat?"),
    Attribute("rehearsal dinner", "date", "On which day is {whose} meal before the wedding?"),
    Attribute(
        "job interview", "date", "On which day does {whose} possible employer ask questions?"
    ),
    Attribute("night shift", "time", "At what time does {whose} late work begin?"),
    Attribute("piano lesson", "time", "At what time does {whose} keyboard practice begin?"),
    Attribute("train journey", "time", "At what time does {whose} railway ride begin?"),
    Attribute("breakfast show", "time", "At what time does {whose} morning broadcast begin?"),
    Attribute(
        "court hearing", "time", "At what time does {whose} appointment with the judge begin?"
    ),
    Attribute("spaniel", "animal", "What is the name of {whose} dog?"),
    Attribute("parrot", "animal", "What is the name of {whose} bird?"),
    Attribute("kitten", "animal", "What is the name of {whose} cat?"),
    Attribute("pony", "animal", "What is the name of {whose} horse?"),
    Attribute("sailing boat", "animal", "What is the name of {whose} yacht?"),
    Attribute("dentist", "person", _PERSON + "looks after {whose} teeth?"),
    Attribute("landlord", "person", _PERSON + "receives {whose} rent?"),
    Attribute("lawyer", "person", _PERSON + "defends {whose} side before a judge?"),
    Attribute("hairdresser", "person", _PERSON + "trims {whose} fringe?"),
    Attribute("plumber", "person", _PERSON + "repairs {whose} leaking pipes?"),
    Attribute("accountant", "person", _PERSON + "prepares {whose} taxes?"),
    Attribute("babysitter", "person", _PERSON + "minds {whose} children in the evening?"),
    Attribute("swimming coach", "person", _PERSON + "trains {whose} crawl and backstroke?"),
    Attribute("usual cheese", "cheese", "What is the name of {whose} preferred dairy treat?"),
    Attribute("favourite flower", "flower", "What is the name of {whose} preferred blossom?"),
    Attribute("usual dessert", "dessert", "What is the name of {whose} preferred sweet course?"),
    Attribute("instrument", "instrument", "What is the name of what makes {whose} music?"),
    Attribute("favourite tree", "tree", "What is the name of {whose} preferred wood?"),
    Attribute("favourite gemstone", "gem", "What is the name of {whose} preferred jewel?"),
)

STATEMENTS: tuple[str, ...] = (
    "{Whose} {noun} {verb} {value}.",
    "By the way, {whose} {noun} {verb} {value}.",
    "For the record, {whose} {noun} {verb} {value}.",
    "Just so you know, {whose} {noun} {verb} {value}.",
    "Please remember that {whose} {noun} {verb} {value}.",
    "Also, {whose} {noun} {verb} {value}.",
    "You should know that {whose} {noun} {verb} {value}.",
)
"""How a fact is stated."""

FORMER_STATEMENTS: tuple[str, ...] = (
    "{Whose} {noun} used to {verb} {value}.",
    "Some years ago {whose} {noun} used to {verb} {value}.",
    "In the past, {whose} {noun} used to {verb} {value}.",
)
"""How a value that is no longer true is stated; the verb is the infinitive."""

UPDATE_STATEMENTS: tuple[str, ...] = (
    "{Whose} {noun} {verb} {value} now.",
    "There is news: {whose} {noun} {verb} {value}.",
    "Things have changed, {whose} {noun} {verb} {value} these days.",
    "Forget what I said before, {whose} {noun} {verb} {value}.",
)
"""How a value is stated that takes the place of another."""

INSTRUCTIONS: tuple[str, ...] = (
    "From now on, please call me Captain.",
    "Never end an answer with a question.",
    "Always give lengths in centimetres.",
    "In future, answer in at most two sentences.",
    "Please do not use emojis when you talk to me.",
    "I prefer to be addressed formally, please keep to that.",
    "Whenever I mention a film, tell me the year it came out.",
    "Don't ever suggest dishes with mushrooms.",
    "Always warn me when you are not sure.",
    "Please write numbers as words from here on.",
)
"""What is to hold from the moment it is said."""

ACKNOWLEDGEMENTS = ("Noted:", "Okay, noted:", "Got it:", "Understood:", "Thanks, noted:")
"""How a statement is answered; the fact follows, in the second person."""

ME = Owner("my", "my")

OWNERS: tuple[Owner, ...] = (
    Owner("my sister's", "my sibling's"),
    Owner("my husband's", "my spouse's"),
    Owner("my boss's", "my manager's"),
    Owner("my mother's", "my mum's"),
    Owner("my father's", "my dad's"),
    Owner("my grandmother's", "my granny's"),
    Owner("my doctor's", "my physician's"),
    Owner("my colleague's", "my coworker's"),
    Owner("my uncle's"),
    Owner("my niece's"),
    Owner("my cousin's"),
    Owner("my flatmate's"),
    Owner("Omar's"),
    Owner("Ingrid's"),
    Owner("Tomasz's"),
    Owner("Priya's"),
    Owner("Hector's"),
    Owner("Yuki's"),
    Owner("Beatrice's"),
    Owner("Kofi's"),
    Owner("Marguerite's"),
    Owner("Anton's"),
    Owner("Leila's"),
    Owner("Fergus's"),
    Owner("Noemi's"),
    Owner("Rasmus's"),
)

MONTHS = tuple(
    "January February March April May June July August September October November December".split()
)

WORDS: dict[ValueKind, tuple[str, ...]] = {
    "person": tuple(
        "Okonkwo Varga Lindqvist Abernathy Castellano Dragomir Eklund Fairweather Galbraith "
        "Hashimoto Iwaszko Jankovic Kowalczyk Lombardi Mbeki Nakagawa Oyelaran Petrosyan Quintana "
        "Rasmussen Szymanski Thackeray Ulrich Vandermeer Wickham Yamamoto Zielinski Ashdown "
        "Bellweather Crowther Delacroix Esposito Falkner Gruber Holloway Ibarra Jorgensen Kessler "
        "Lavigne Marchetti Novotny Oakden Pembroke Radcliffe Sorensen Tremblay Underhill Valtonen "
        "Whitlock Yilmaz Zubkov Achterberg Blomfield Cardoso Dunmore Everhart Fontaine Greenslade "
        "Haraldsen Isherwood".split()
    ),
    "animal": tuple(
        "Biscuit Pickle Truffle Nimbus Waffles Pretzel Marmalade Dumpling Crumpet Gizmo Bandit "
        "Pogo Sprocket Tofu Nacho Clover Domino Fidget Juniper Kipper Mocha Nugget Otis Pippin "
        "Quaver Rascal Sultan Tango Velcro Whiskers Ziggy Boomer Chutney Dynamo Empress Figaro "
        "Gadget Hopscotch Inkspot Jellybean".split()
    ),
    "town": tuple(
        "Tavira Bergen Lucca Oulu Girona Plovdiv Aarhus Trier Siena Kotor Bruges Cadiz Dijon "
        "Exeter Freiburg Gdansk Hobart Izmir Jena Leiden Ghent Nantes Odense Perth Quimper "
        "Rennes Sligo Tartu Utrecht Vigo Windhoek Yerevan Zadar Annecy Bolzano Coimbra Dundee "
        "Evora Haarlem Inverness Kaunas Limerick Maribor Narvik Ostrava Pecs".split()
    ),
    "cheese": tuple(
        "gouda brie feta halloumi manchego gruyere stilton camembert pecorino taleggio roquefort "
        "edam mozzarella ricotta emmental".split()
    ),
    "flower": tuple(
        "dahlia peony hydrangea foxglove marigold iris camellia freesia snapdragon lupin anemone "
        "chrysanthemum geranium hyacinth gladiolus".split()
    ),
    "dessert": tuple(
        "tiramisu baklava pavlova cheesecake cannoli sorbet fudge strudel meringue eclair "
        "churros profiteroles trifle brownie macaron".split()
    ),
    "instrument": tuple(
        "oboe bassoon accordion mandolin trombone cello harp banjo clarinet ukulele saxophone "
        "tuba zither harmonica piccolo".split()
    ),
    "tree": tuple(
        "sycamore hornbeam cedar spruce magnolia rowan chestnut larch aspen eucalyptus "
        "hawthorn baobab redwood cypress alder".split()
    ),
    "gem": tuple(
        "opal topaz garnet amethyst sapphire peridot emerald onyx citrine moonstone zircon "
        "tourmaline ruby aquamarine jade".split()
    ),
}
"""Values that are words, by kind. A word stands in one list only and never in small talk."""
