"""Records to samples, many at a time: prompts and answers are tokenised apart, so no token spans a border."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from train.data.sample import IGNORED, Sample, TemplateFault
from train.data.turns import Turn, chains, pieces
from train.loop.heartbeat import HEARTBEAT

if TYPE_CHECKING:
    from train.data.formats import Record
    from train.data.template import ChatTemplate

BATCH_RECORDS = 512
BATCH_CHARACTERS = 1 << 19
"""A batch ends at either: the tokenizer's own objects take some 150 bytes a token until they are read."""


@dataclass
class _Plan:
    """A record as text: the turns of each sample to be, or why there is none."""

    place: str
    chains: list[list[Turn]]
    fault: TemplateFault | None = None

    def texts(self) -> list[str]:
        return [text for chain in self.chains for text in _chain_texts(chain)]


def tokenise(template: ChatTemplate, records: Iterable[Record]) -> Iterator[list[Sample] | TemplateFault]:
    """The samples of each record in turn, or why it has none."""
    batch: list[_Plan] = []
    size = 0
    for record in records:
        HEARTBEAT.beat("reading data")
        try:
            batch.append(_Plan(record.place, chains(template.turns(record))))
        except TemplateFault as fault:
            batch.append(_Plan(record.place, [], fault))
        size += sum(len(turn.prompt) + len(turn.answer) for chain in batch[-1].chains for turn in chain)
        if len(batch) >= BATCH_RECORDS or size >= BATCH_CHARACTERS:
            yield from _tokenised(template, batch)
            batch, size = [], 0
    yield from _tokenised(template, batch)


def samples_of(template: ChatTemplate, place: str, turns: list[Turn]) -> list[Sample]:
    """The samples of one record's turns; TemplateFault where it has none."""
    (made,) = _tokenised(template, [_Plan(place, chains(turns))])
    if isinstance(made, TemplateFault):
        raise made
    return made


def _tokenised(template: ChatTemplate, batch: list[_Plan]) -> Iterator[list[Sample] | TemplateFault]:
    ids = iter(template.ids([text for plan in batch for text in plan.texts()]))
    for plan in batch:
        own = [[next(ids) for _ in _chain_texts(chain)] for chain in plan.chains]
        if plan.fault:
            yield plan.fault
            continue
        try:
            yield [
                sample
                for chain, parts in zip(plan.chains, own, strict=True)
                for sample in _assemble(template, chain, parts, plan.place)
            ]
        except TemplateFault as fault:
            yield fault


def _chain_texts(chain: list[Turn]) -> list[str]:
    """The pieces; of several turns also the last prompt as a whole, as a server tokenises it."""
    return pieces(chain) + ([chain[-1].prompt] if len(chain) > 1 else [])


def _assemble(template: ChatTemplate, chain: list[Turn], parts: list[list[int]], place: str) -> list[Sample]:
    """One sample of a chain; one of each turn where their common sequence is not what a server would send.

    A server tokenises the last prompt as a whole: a token may span the border of an earlier answer there.
    That one comparison covers the prompts before it too: each ends in text that begins after a stop token,
    and a special token cuts the text before anything else does.
    """
    if len(chain) > 1 and [token for part in parts[:-2] for token in part] != parts[-1]:
        apart = [[turn] for turn in chain]
        texts = [template.ids(pieces(one)) for one in apart]
        return [
            s for one, ids in zip(apart, texts, strict=True) for s in _assemble(template, one, ids, place)
        ]
    input_ids, labels = array("i"), array("i")
    for number in range(0, 2 * len(chain), 2):
        prompt, answer = parts[number], parts[number + 1]
        if not answer or answer[-1] != template.stop.token_id:
            raise TemplateFault("the last token of an answer is not the stop token")
        input_ids.extend(prompt)
        input_ids.extend(answer)
        labels.extend([IGNORED] * len(prompt))
        labels.extend(answer)
    return [Sample(input_ids, labels, place, tuple(turn.index for turn in chain))]
