"""Sentences for the text sample, written from a small grammar.

Six intents of a voice assistant. Some openings fit two intents, some labels are
wrong and some words are misspelt, as in a log that people labelled by hand, so
that a good classifier ends near 95 % and its loss keeps a curvature to measure.
"""

from __future__ import annotations

import random

INTENTS = ("alarm", "banking", "music", "restaurant", "travel", "weather")

SLOTS: dict[str, tuple[str, ...]] = {
    "day": ("today", "tomorrow", "on monday", "on friday", "this weekend", "next week"),
    "time": ("at six", "at seven thirty", "at noon", "in ten minutes", "before nine", "tonight"),
    "city": ("berlin", "lagos", "lima", "osaka", "oslo", "quito", "sydney", "toronto"),
    "food": ("noodles", "pizza", "tacos", "curry", "sushi", "breakfast"),
    "sky": ("rain", "snow", "be windy", "be sunny", "freeze", "clear up"),
    "genre": ("jazz", "blues", "opera", "techno", "folk", "hip hop"),
    "money": ("ten dollars", "fifty euros", "my rent", "two hundred pounds", "the deposit"),
    "person": ("anna", "my landlord", "david", "my sister", "the plumber", "grandma"),
    "account": ("savings account", "checking account", "credit card", "joint account"),
    "party": ("two", "four", "six people", "a big group", "my parents"),
    "please": ("please", "thanks", "if you can", "right away", "", "", ""),
    "start": ("hey", "could you", "i want you to", "can you", "", "", ""),
}

TEMPLATES: dict[str, tuple[str, ...]] = {
    "alarm": (
        "wake me up {time} {day}",
        "set an alarm {time}",
        "cancel the alarm {day}",
        "remind me to call {person} {time}",
        "snooze until {time}",
    ),
    "banking": (
        "send {money} to {person}",
        "what is left on my {account}",
        "move {money} to my {account}",
        "block my {account} {day}",
        "did {person} pay {money}",
    ),
    "music": (
        "play some {genre}",
        "put on {genre} for {party}",
        "next song",
        "turn up the {genre}",
        "add this {genre} track to my list",
    ),
    "restaurant": (
        "book a table for {party} {time}",
        "find good {food} in {city}",
        "order {food} for {party}",
        "where can i eat {food} {day}",
        "is there a place with {food} open {time}",
    ),
    "travel": (
        "book a flight to {city} {day}",
        "find a train from {city} to {city}",
        "how long is the drive to {city}",
        "get me a hotel in {city} for {party}",
        "when does the bus to {city} leave {day}",
    ),
    "weather": (
        "will it {sky} in {city} {day}",
        "what is the forecast for {city}",
        "how cold is it in {city} {time}",
        "do i need an umbrella {day}",
        "is it going to {sky} {day}",
    ),
}

# Nothing in these tells the two intents apart.
AMBIGUOUS: tuple[tuple[str, tuple[str, str]], ...] = (
    ("what about {city} {day}", ("travel", "weather")),
    ("is {city} nice {day}", ("weather", "travel")),
    ("something for {party} in {city} {day}", ("restaurant", "travel")),
    ("cancel it {day}", ("alarm", "restaurant")),
    ("pay {person} for the {food}", ("banking", "restaurant")),
    ("{genre} {time}", ("music", "alarm")),
)


def sentence(rng: random.Random) -> tuple[str, str]:
    """One sentence and its label: 5 % of two meanings, 1 % labelled at random."""
    if rng.random() < 0.05:
        template, meanings = rng.choice(AMBIGUOUS)
        intent = rng.choice(meanings)
    else:
        intent = rng.choice(INTENTS)
        template = rng.choice(TEMPLATES[intent])
    text = "{start} " + template + " {please}"
    while "{" in text:
        slot = text[text.index("{") + 1 : text.index("}")]
        text = text.replace("{" + slot + "}", rng.choice(SLOTS[slot]), 1)
    words = [misspelt(word, rng) if rng.random() < 0.03 else word for word in text.split()]
    return " ".join(words), rng.choice(INTENTS) if rng.random() < 0.01 else intent


def misspelt(word: str, rng: random.Random) -> str:
    """The word without one of its letters."""
    if len(word) < 4:
        return word
    gone = rng.randrange(len(word))
    return word[:gone] + word[gone + 1 :]


def write_sentences(
    seed: int, *, train: int, held_out_per_intent: int
) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    """(text, intent) rows to train on, and held-out rows of which no text was trained on."""
    rng = random.Random(seed)
    train_rows = [sentence(rng) for _ in range(train)]
    seen = {text for text, _ in train_rows}
    held_out: list[tuple[str, str]] = []
    left = dict.fromkeys(INTENTS, held_out_per_intent)
    while any(left.values()):
        text, intent = sentence(rng)
        if text in seen or left[intent] == 0:
            continue
        seen.add(text)
        left[intent] -= 1
        held_out.append((text, intent))
    return train_rows, held_out
