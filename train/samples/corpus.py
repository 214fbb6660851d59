"""The text that the small model learns: conversations, descriptions, lists and stories over `facts`."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable
from dataclasses import dataclass

from train.checks.tiny import SPECIAL_TOKENS
from train.samples.facts import Fact, all_facts, with_article

END, TURN, TURN_END = SPECIAL_TOKENS[:3]

NAMES = "Mia Tom Ada Ben Lin Wei Omar Sara Ivan Noor Mei Leo Ana Raj Eva Kofi Lea Sam Yuki Nils"
DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday"
WEATHER = "sunny rainy windy cold warm foggy quiet bright"
GREETINGS = (
    "Hello!|Hello! What would you like to know?",
    "Good morning.|Good morning! What would you like to know?",
    "Thank you.|You are welcome.",
    "Goodbye!|Goodbye! Come back soon.",
    "Who are you?|I am a small language model. I know simple things.",
    "What can you do?|I can tell you about animals, plants, things, jobs, words and numbers.",
)
STORIES = (
    "{name} has {a_animal}. The {animal} is {colour}. Every {day} {name} gives the {animal} some "
    "{food}. Then the {animal} is happy, and {name} is happy too.",
    "It was a {weather} {day}. {name} and {other} went out to look for {a_animal}. They looked and "
    "looked. At last they saw one in the {home}. It was {colour}. {name} laughed, and they walked home.",
    "One {weather} morning {name} lost {a_thing}. It was {thing_colour} and made of {material}. {other}"
    " helped to look for it. They found it {place}. {name} said: Thank you, {other}!",
    "{name} wants to be {a_job}. {A_job} {work}. So {name} visits one {workplace} and asks many "
    "questions. On {day} {name} tells {other} all about it.",
    "{name} and {other} sit in the garden. They eat {a_plant}. It is {plant_colour} and it grows "
    "{growth}. The day is {weather}. {other} says: I like this!",
    "In the {home} lived a little {young}. Its mother was {a_animal}. One {weather} day the {young} "
    "walked too far. {name} found it and brought it back. The mother was very happy.",
)
MAKERS: tuple[tuple[int, str], ...] = (
    (48, "conversation"),
    (6, "description_asked"),
    (10, "description"),
    (10, "list"),
    (10, "quiz"),
    (9, "story"),
    (4, "story_asked"),
    (1, "greeting"),
    (2, "counting"),
)
"""How often, of a hundred documents, and which kind."""


@dataclass(frozen=True)
class Corpus:
    """Documents to learn, and documents that are like them but are in no part of those."""

    documents: list[str]
    held_out: list[str]


def make_corpus(num_documents: int, seed: int) -> Corpus:
    """Distinct documents by a seed. One of 25 is held out, by a hash of its text: with every seed."""
    writer = Writer(random.Random(seed))
    documents: dict[str, bool] = {}
    while len(documents) < num_documents:
        text = writer.document()
        documents[text] = hashlib.sha256(text.encode()).digest()[0] % 25 == 0
    return Corpus(
        [text for text, is_held in documents.items() if not is_held],
        [text for text, is_held in documents.items() if is_held],
    )


def chat(*turns: tuple[str, str]) -> str:
    """Questions and answers as ChatML, as the chat template writes them."""
    parts = ((("user", question), ("assistant", answer)) for question, answer in turns)
    messages = [message for pair in parts for message in pair]
    return "".join(f"{TURN}{role}\n{text}{TURN_END}\n" for role, text in messages)


class Writer:
    """Writes one random document after another; the same generator gives the same ones."""

    def __init__(self, generator: random.Random) -> None:
        self.generator = generator
        self.by_topic: dict[str, list[Fact]] = {}
        self.by_thing: dict[str, list[Fact]] = {}
        for fact in all_facts():
            self.by_topic.setdefault(fact.topic, []).append(fact)
            self.by_thing.setdefault(fact.about, []).append(fact)
        self.weights = [len(facts) ** 0.5 for facts in self.by_topic.values()]
        self.things = [name for name, facts in self.by_thing.items() if len(facts) > 2 and name[0].islower()]

    def document(self) -> str:
        """The text of one document, without the token that ends it."""
        shares = [share for share, _ in MAKERS]
        (_, kind), *_ = self.generator.choices(MAKERS, shares)
        make: Callable[[], str] = getattr(self, f"_{kind}")
        return make()

    def fact(self) -> Fact:
        """A random fact; a topic with ten times the facts comes three times as often."""
        (facts,) = self.generator.choices(list(self.by_topic.values()), self.weights)
        return self.generator.choice(facts)

    def _turn(self, fact: Fact) -> tuple[str, str]:
        return self.generator.choice(fact.questions()), fact.statement()

    def _conversation(self) -> str:
        first = self.fact()
        if self.generator.random() < 0.7:
            return chat(self._turn(first))
        others = [fact for fact in [*self.by_thing[first.about], self.fact()] if fact != first]
        return chat(self._turn(first), self._turn(self.generator.choice(others or self.by_topic["kind"])))

    def _told(self, thing: str) -> str:
        facts = [fact for fact in self.by_thing[thing] if fact.topic not in ("young", "plural", "opposite")]
        rest = facts[1:]
        self.generator.shuffle(rest)
        subject = with_article(thing).capitalize()
        told = [facts[0].statement(), *(fact.statement().replace(f"{subject} ", "It ") for fact in rest)]
        if facts[0].topic == "work":
            told = [told[0], *(fact.statement() for fact in rest)]
        return " ".join(told)

    def _description(self) -> str:
        return self._told(self.generator.choice(self.things))

    def _description_asked(self) -> str:
        thing = self.generator.choice(self.things)
        question = self.generator.choice(["Tell me about {}.", "Describe {}.", "What do you know about {}?"])
        return chat((question.format(with_article(thing)), self._told(thing)))

    def _list(self) -> str:
        if self.generator.random() < 0.5:
            things = self.generator.sample(self.things, 3)
            lines = [
                f"{thing}: " + ", ".join(f"{fact.topic} {fact.answer}" for fact in self.by_thing[thing])
                for thing in things
            ]
        else:
            topic = self.generator.choice(list(self.by_topic))
            facts = self.generator.sample(self.by_topic[topic], 6)
            lines = [f"{topic}", *(f"{fact.about}: {fact.answer}" for fact in facts)]
        return "\n".join(lines)

    def _quiz(self) -> str:
        facts = [self.fact() for _ in range(3)]
        pairs = [(self.generator.choice(fact.questions()), fact) for fact in facts]
        return "\n".join(f"Question: {question}\nAnswer: {fact.answer}" for question, fact in pairs)

    def _greeting(self) -> str:
        question, answer = self.generator.choice(GREETINGS).split("|")
        return chat((question, answer), self._turn(self.fact()))

    def _counting(self) -> str:
        first = self.generator.randrange(20)
        last = first + self.generator.randrange(2, 9)
        numbers = ", ".join(map(str, range(first, last + 1)))
        return chat((f"Count from {first} to {last}.", f"{numbers}."))

    def _story(self) -> str:
        return self._tell(self.generator.choice(list(self._of("sound"))))

    def _story_asked(self) -> str:
        animal = self.generator.choice(list(self._of("sound")))
        question = self.generator.choice(
            ["Tell me a story.", "Tell me a short story.", "I want to hear a story."]
        )
        return chat((question, self._tell(animal)))

    def _of(self, topic: str) -> dict[str, str]:
        return {fact.about: fact.answer for fact in self.by_topic[topic]}

    def _tell(self, animal: str) -> str:
        choose = self.generator.choice
        name, other = self.generator.sample(NAMES.split(), 2)
        thing, job, plant = (choose(list(self._of(topic))) for topic in ("material", "work", "growth"))
        values = {topic: self._of(topic)[animal] for topic in ("colour", "food", "home", "young")}
        values |= {topic: self._of(topic)[thing] for topic in ("material", "place")}
        values |= {topic: self._of(topic)[job] for topic in ("work", "workplace")}
        return choose(STORIES).format(
            **values, name=name, other=other, day=choose(DAYS.split()), weather=choose(WEATHER.split()),
            animal=animal, a_animal=with_article(animal), a_thing=with_article(thing),
            a_job=with_article(job), A_job=with_article(job).capitalize(), a_plant=with_article(plant),
            thing_colour=self._of("colour")[thing], plant_colour=self._of("colour")[plant],
            growth=self._of("growth")[plant],
        )  # fmt: skip
