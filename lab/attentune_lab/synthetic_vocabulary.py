"""The words and sentence templates of the synthetic reviews.

The generator fills `{slots}`; a word in `[brackets]` is copied to the text and is one of the decisive words of its
sentence. Every template takes words of both polarities, so that a template alone does not determine the label.
"""

from __future__ import annotations

# (positive, negative) opposites. Training uses only the first TRAIN_WORDS pairs.
WORD_PAIRS = (
    ("charming", "tiresome"),
    ("gripping", "dull"),
    ("funny", "unfunny"),
    ("brilliant", "stupid"),
    ("clever", "silly"),
    ("fresh", "stale"),
    ("warm", "cold"),
    ("delightful", "dreadful"),
    ("thrilling", "boring"),
    ("moving", "lifeless"),
    ("witty", "witless"),
    ("elegant", "clumsy"),
    ("lively", "dreary"),
    ("wonderful", "awful"),
    ("rewarding", "pointless"),
    ("superb", "shoddy"),
    ("inventive", "derivative"),
    ("satisfying", "frustrating"),
    ("touching", "irritating"),
    ("memorable", "forgettable"),
    ("enjoyable", "tedious"),
    ("excellent", "terrible"),
    ("graceful", "awkward"),
    ("absorbing", "plodding"),
    # The pairs below are not used in training.
    ("dazzling", "drab"),
    ("captivating", "wearisome"),
    ("splendid", "dismal"),
    ("hilarious", "miserable"),
    ("engaging", "grating"),
    ("polished", "sloppy"),
    ("magnificent", "abysmal"),
    ("enchanting", "insufferable"),
    ("exciting", "sluggish"),
    ("beautiful", "ugly"),
    ("impressive", "feeble"),
    ("terrific", "horrible"),
)
TRAIN_WORDS = 24

# The shortcut: the first name correlates with negative, the second with positive, with the given strength.
SHORTCUT_VENUES = ("Forum", "Plaza")
NEUTRAL_VENUES = ("Apollo", "Empire", "Globe", "Regent")

SLOTS = {
    "noun": (
        "film", "movie", "picture", "story", "plot", "script", "drama", "comedy", "sequel", "remake", "adaptation",
        "documentary", "musical", "western", "dialogue", "screenplay",
    ),
    "day": ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"),
    "place": ("Norway", "Spain", "Canada", "Chile", "Kenya", "Poland", "Iceland", "Japan", "Portugal", "Peru"),
    "count": ("ten", "twenty", "thirty", "forty", "fifty", "sixty", "eighty"),
    "relative": ("brother", "sister", "cousin", "neighbour", "uncle", "colleague", "daughter", "flatmate"),
    "hour": ("six", "seven", "eight", "nine", "ten"),
    "colour": ("blue", "green", "grey", "yellow", "brown", "white"),
}  # fmt: skip

SINGLE_TEMPLATES = (
    "The {noun} was {word}.",
    "I found the {noun} {word} from the first scene on.",
    "To my mind the {noun} is {word}.",
    "All in all the {noun} felt {word}.",
    "We both agreed that the {noun} was {word}.",
    "As for the {noun} itself, it was {word}.",
    "If I had to pick one word for the {noun}, it would be {word}.",
    "The {noun} turned out {word}.",
    "Everyone left saying how {word} the {noun} was.",
    "By the second hour the {noun} had become {word}.",
    "The {noun} kept on being {word} until the credits.",
    "You will hear that the {noun} is {word}, and it is.",
)

CONTEXT_TEMPLATES = (
    "The {noun} was [not] {word} at all.",
    "I would [never] call the {noun} {word}.",
    "The {noun} was [hardly] {word}, whatever the posters say.",
    "There was [nothing] {word} about the {noun}.",
    "[Nobody] in our row found the {noun} {word}.",
    "I [failed] to see what was {word} about the {noun}.",
    "People [wrongly] describe the {noun} as {word}.",
    "Calling the {noun} {word} would be [wrong].",
    "It is a [mistake] to think of the {noun} as {word}.",
    "The {noun} [stopped] being {word} after five minutes.",
    "Reports of the {noun} being {word} are [untrue].",
    "They said the {noun} was {word}, which is [false].",
    "I [doubt] that anyone could find the {noun} {word}.",
    "You may fear or hope that the {noun} is {word}, but it is [not].",
)

# The order of the words determines the label: the first word decides in EARLIER_DECIDES, the second in LATER_DECIDES.
EARLIER_DECIDES = (
    "The {noun} was {earlier} rather than {later}.",
    "I thought the {noun} more {earlier} than {later}.",
    "The {noun} was {earlier} where the book was {later}.",
    "The {noun} was {earlier}, though the trailer looked {later}.",
    "I call the {noun} {earlier} even if my {relative} says {later}.",
    "The {noun} is {earlier} now that the {later} scenes are cut.",
    "The {noun} proved {earlier} instead of {later}.",
    "The {noun} was {earlier} and only its poster was {later}.",
)
LATER_DECIDES = (
    "The {noun} started {earlier} but ended {later}.",
    "The {noun} went from {earlier} to {later} within minutes.",
    "I expected the {noun} to be {earlier} and it was {later}.",
    "The trailer looked {earlier}, yet the {noun} was {later}.",
    "The {noun} was less {earlier} than {later}.",
    "What seemed {earlier} in the {noun} soon became {later}.",
    "The {earlier} opening of the {noun} gave way to something {later}.",
    "Once {earlier}, the {noun} turned {later} for good.",
)

VENUE_TEMPLATES = (
    "We saw it at the {venue} on {day}.",
    "The {venue} showed it in room two.",
    "I went to the {venue} with my {relative}.",
    "The {venue} has it until {day}.",
    "My ticket from the {venue} says {day}.",
    "They screened it at the {venue} on {day} evening.",
    "On {day} the {venue} was about half full.",
    "We walked to the {venue} from the station.",
    "It is on at the {venue} this week.",
    "The {venue} opened its doors at {hour}.",
    "My {relative} works at the {venue} on {day}.",
    "Row nine at the {venue}, at {hour} on {day}.",
)

# Neutral sentences. Some contain "not" or "nothing", so that these words alone carry no information.
FILLER_TEMPLATES = (
    "We had seats near the back.",
    "It runs for about two hours.",
    "My {relative} drove us there and back.",
    "The carpet in the lobby is {colour}.",
    "It was raining when we came out.",
    "Somebody in front wore a {colour} hat.",
    "The credits list four writers.",
    "It was made in {place}.",
    "It is set in {place} in the sixties.",
    "The lead is played by an actor from {place}.",
    "My {relative} lent me the novel beforehand.",
    "We did not stay for the credits.",
    "I had never been to that part of town.",
    "Nothing had been announced before the screening.",
    "We bought popcorn and two lemonades.",
    "There were about {count} people in the room.",
    "The screening began at half past {hour}.",
    "It was shown with subtitles.",
    "The interval lasted {count} minutes.",
    "I do not know the director's other work.",
    "We took the bus home at {hour}.",
    "The curtain is {colour} velvet.",
    "Nobody had told us about the interval.",
    "My {relative} sat next to me.",
    "The copy came from an archive in {place}.",
    "On {day} there is a second showing.",
    "The ticket is {colour} with a number on it.",
    "It was my {relative} who chose the date.",
)
