"""The words of a small invented country: its subjects, outlets, towns and people.

A template has slots in braces. Capital slots are the facts of a story and stay the same through it ({Who},
{Surname}, {Role}, {Place}, {Thing}, {Body}); small ones are drawn anew each time, from the subject's own
lists first and the common ones after. Nothing here is random by itself: `writing` draws with the seed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Theme:
    """Something that can suddenly be everywhere. `terms` are the words a trend detector should find."""

    terms: tuple[str, ...]
    headlines: tuple[str, ...]
    sentences: tuple[str, ...]


@dataclass(frozen=True)
class Subject:
    name: str
    roles: tuple[str, ...]
    things: tuple[str, ...]
    bodies: tuple[str, ...]
    headlines: tuple[str, ...]
    sentences: tuple[str, ...]
    words: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    themes: tuple[Theme, ...] = ()


PLACES = (
    "Brindleford", "Upper Wick", "Saltmarsh", "Kettering Bay", "Odelheim", "Quill Harbour", "Tarn Bridge",
    "Little Murmur", "Fennimore", "Cobbleton", "Ashgrove", "Pellworth", "Drumlin", "Oxley Green", "Varnham",
    "Snodsbury", "Hollow Pines", "Mirefield", "Port Lantern", "Winterbourne",
)  # fmt: skip
FIRST_NAMES = (
    "Ada", "Boris", "Chloé", "Dmitri", "Esme", "Farid", "Greta", "Hugo", "Imani", "Jonas", "Kirsten", "Lev",
    "Maud", "Nils", "Odalys", "Petra", "Quentin", "Rosa", "Søren", "Tomás", "Ursula", "Viggo", "Wanda",
    "Yusuf",
)  # fmt: skip
SURNAMES = (
    "Abernathy", "Brenk", "Castellane", "Dunmore", "Eskildsen", "Fothergill", "Grubb", "Hallström", "Ivers",
    "Jankowski", "Kettle", "Lindqvist", "Müller", "Nakamura", "Okafor", "Pemberton", "Quayle", "Rasmussen",
    "Szymborska", "Thistlewood", "Ulrich", "Vantongeren", "Whitlock", "Yilmaz", "Zapata",
)  # fmt: skip

COMMON: Mapping[str, tuple[str, ...]] = {
    "number": (
        "three", "four", "seven", "nine", "eleven", "fourteen", "nineteen", "26", "31", "44", "58", "73",
        "92", "120", "340", "610", "1,200", "2,750",
    ),
    "few": ("two", "three", "four", "five", "six", "seven", "eight", "nine", "eleven", "twelve", "13",
            "14", "17", "19"),
    "day": ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"),
    "said": ("said", "insisted", "admitted", "explained", "sighed", "announced", "conceded", "maintained"),
    "quick": ("quickly", "reluctantly", "cheerfully", "without warning", "after lunch", "against all advice"),
    "mood": ("delighted", "puzzled", "furious", "mildly amused", "relieved", "unconvinced", "speechless"),
    "group": (
        "neighbours", "pensioners", "schoolchildren", "commuters", "critics", "volunteers",
        "night-shift nurses", "tourists", "local bakers", "retired sailors", "the choir",
        "two rival councillors",
    ),
    "object": (
        "a ladder", "a borrowed trumpet", "the town clock", "an umbrella stand", "a crate of pears", "a tuba",
        "a laminated map", "a very long rope", "the spare key", "a wheelbarrow", "a signed photograph",
    ),
    "sum": ("90 crowns", "400 crowns", "6,000 crowns", "18,500 crowns", "half a million crowns",
            "a round sum"),
    "meeting": ("hearing", "meeting", "press conference", "public debate", "vigil", "breakfast", "workshop"),
}  # fmt: skip

GENERAL_SENTENCES = (
    "\"We were {mood}, and so were {group},\" {said} {Surname} at a {meeting} on {day}.",
    "The {meeting} in {Place} lasted {number} minutes and ended when somebody produced {object}.",
    "{group} had gathered in {Place} {quick}, some of them with {object}.",
    "An inquiry by {Body} is expected to cost {sum} and to report by {day}.",
    "{Who}, who has been {Role} for {few} years, {said} that nobody had asked before.",
    "A spokesperson for {Body} declined to say whether {Thing} would be replaced, moved or simply forgiven.",
    "By {day} evening {number} people had signed a petition about {Thing}, {number} of them twice.",
    "Asked about {Thing}, {group} were {mood}; asked again, they pointed at {object}.",
    "Nobody was hurt, although {object} had to be carried out of {Place} {quick}.",
    "{Body} has set aside {sum} for {Thing} and, according to minutes seen by this paper, for cake.",
)  # fmt: skip


@dataclass(frozen=True)
class Outlet:
    """Who publishes: the format and habits of its feed, and how it treats the words of others."""

    name: str
    site: str
    format: str = "rss"
    encoding: str = "utf-8"
    html: str = "paragraphs"
    weight: float = 1.0
    suffix: str = ""


OUTLETS = (
    Outlet("The Brindleford Courier", "courier.example", weight=1.6),
    Outlet("Saltmarsh Gazette", "gazette.example", "atom", html="soup", weight=1.3),
    Outlet("The Daily Ladder", "ladder.example", html="links", weight=1.3, suffix=" | The Daily Ladder"),
    Outlet("Odelheim Zeitung, English edition", "zeitung.example", "rss", "iso-8859-1", weight=1.0),
    Outlet("Quill Harbour Telegraph", "telegraph.example", "atom", html="paragraphs", weight=1.0),
    Outlet("Tarn Bridge Today", "tarnbridge.example", html="soup", weight=0.9),
    Outlet("The Fennimore Post", "post.example", html="escaped", weight=0.9),
    Outlet("Evening Turnip", "turnip.example", "atom", html="links", weight=0.8, suffix=" - Evening Turnip"),
    Outlet("Drumlin Observer", "observer.example", html="plain", weight=0.7),
    Outlet("Mirefield Mercury", "mercury.example", "rss", "windows-1252", html="paragraphs", weight=0.7),
    Outlet("Port Lantern Light", "lantern.example", "atom", html="plain", weight=0.6),
    Outlet("The Oxley Echo", "echo.example", html="soup", weight=0.5),
)

BULLETIN_HEADLINES = ("Weather for {Place}: {sky}, {degrees} degrees", "Weather for {Place}: expect {sky}")
BULLETIN = (
    "In {Place} the day begins with {sky} and a temperature of {degrees} degrees.",
    "Towards noon expect {sky}, with wind from the {wind} at {speed} kilometres per hour.",
    "The chance of rain is {chance} percent in the morning and {chance} percent after dark.",
    "On the coast waves of {height} metres are possible, and {sky} farther out.",
    "Tomorrow brings {sky} and between {degrees} and {degrees} degrees.",
    "The pollen count is {chance}, the tide is high at {hour}, and the sun sets at {hour}.",
)
"""The same words every day with other values: what a careless detector takes for copies."""

BULLETIN_WORDS: Mapping[str, tuple[str, ...]] = {
    "sky": ("light rain", "broken cloud", "sunshine", "low fog", "drizzle", "a clear sky", "thunder", "haze",
            "hail", "snow showers", "high cloud", "sleet"),
    "degrees": tuple(str(n) for n in range(-3, 29)),
    "wind": ("north", "north-east", "east", "south-east", "south", "south-west", "west", "north-west"),
    "speed": tuple(str(n) for n in range(4, 60, 3)),
    "chance": tuple(str(n) for n in range(5, 100, 5)),
    "height": ("two", "three", "four", "five", "six"),
    "hour": ("five", "half past five", "six", "half past six", "seven", "half past seven", "eight", "nine"),
}  # fmt: skip

SYNONYMS: Mapping[str, str] = {
    "said": "told reporters", "insisted": "stressed", "admitted": "granted", "explained": "made clear",
    "announced": "declared", "quickly": "in haste", "reluctantly": "with some reluctance",
    "cheerfully": "in good spirits", "delighted": "overjoyed", "puzzled": "baffled", "furious": "livid",
    "relieved": "reassured", "neighbours": "local residents", "pensioners": "senior citizens",
    "schoolchildren": "pupils", "commuters": "travellers", "visitors": "guests", "people": "persons",
    "minutes": "mins", "kilometres": "km", "percent": "per cent", "years": "summers", "expected": "due",
    "found": "discovered", "asked": "questioned", "signed": "put their names to", "ended": "came to an end",
    "gathered": "assembled", "somebody": "someone", "nobody": "no one", "hurt": "injured",
    "although": "even though", "because": "since", "after": "following", "before": "ahead of",
    "about": "concerning", "declined": "refused", "whether": "if", "replaced": "exchanged",
    "moved": "relocated", "according": "going by", "seen": "obtained", "evening": "night",
    "again": "once more",
    "lasted": "went on for", "produced": "brought out", "inquiry": "investigation", "cost": "run to",
    "report": "publish its findings", "spokesperson": "press officer", "simply": "just", "carried": "taken",
    "began": "started", "first": "originally", "noticed": "spotted", "second": "further", "shows": "depicts",
    "built": "made", "closed": "finished", "offered": "bid", "bought": "purchased", "rose": "climbed",
    "grew": "increased", "dropped": "let fall", "described": "characterised", "recommends": "advises",
    "animal": "creature", "road": "street", "machines": "computers", "error": "mistake", "match": "game",
    "supporters": "fans", "coach": "manager", "train": "service", "trains": "services", "recipe": "method",
    "kitchen": "galley", "traders": "dealers", "shareholders": "investors", "engineers": "technicians",
    "spacecraft": "probe", "orbit": "path", "restorers": "conservators", "gallery": "museum",
}  # fmt: skip
"""How an editor in a hurry rewords an agency's text."""

CREDITS = (
    "(Northern Press Agency)",
    "This report first appeared elsewhere.",
    "Additional reporting by our correspondent in {Place}.",
    "Subscribe to our newsletter for more stories like this.",
)
