"""Generations that another machine has built from the store, for the writer to adopt.

    built/<number>        which collection, and where its generation is
    answered/<number>     what became of it

Numbers have no gaps, and the last of each stays, so a writer asks for one object to learn whether there is something
new.
"""

from __future__ import annotations

import msgspec

from indexes.base.errors import NotFound
from indexes.store.generations import StoredGeneration
from indexes.store.objects import Objects
from indexes.store.slots import FORMAT, seal, unseal

BUILT, ANSWERED = "built", "answered"
ANSWERS_KEPT = 100  # for machines that look for them later than others


class Offer(msgspec.Struct, frozen=True):
    """A generation of the collection with this uid."""

    format: int
    uid: str
    generation: StoredGeneration


class OfferAnswer(msgspec.Struct, frozen=True):
    """Why an offer was refused; "" if the generation is live, under a number of the writer's."""

    format: int
    refusal: str = ""
    number: int = 0


class Offers:
    """The offers in a store. `answered` is the last one that was answered."""

    def __init__(self, objects: Objects) -> None:
        self._objects = objects
        self.answered = self._last(ANSWERED)

    def make(self, uid: str, generation: StoredGeneration) -> int:
        """Offer a generation; returns the number of the offer."""
        content, number = seal(Offer(FORMAT, uid, generation)), self._last(BUILT) + 1
        while not self._objects.create(name := name_of(BUILT, number), content):
            if self._objects.read(name) == content:  # an answer was lost
                break
            number += 1
        return number

    def next(self) -> Offer | None:
        """The first offer that is not answered."""
        name = name_of(BUILT, self.answered + 1)
        try:
            return unseal(name, self._objects.read(name), Offer)
        except NotFound:
            return None

    def answer(self, refusal: str, number: int) -> None:
        """Answer the first offer that is not answered, and forget those before it, and old answers."""
        self.answered += 1
        content = seal(OfferAnswer(FORMAT, refusal, number))
        self._objects.create(name_of(ANSWERED, self.answered), content)
        for folder, kept in ((BUILT, 0), (ANSWERED, ANSWERS_KEPT)):
            older = [one for one in self._objects.names(folder) if int(one) < self.answered - kept]
            self._objects.remove(f"{folder}/{one}" for one in older)

    def answer_to(self, number: int) -> OfferAnswer | None:
        name = name_of(ANSWERED, number)
        try:
            return unseal(name, self._objects.read(name), OfferAnswer)
        except NotFound:
            return None if self._last(ANSWERED) < number else OfferAnswer(FORMAT)

    def _last(self, folder: str) -> int:
        names = self._objects.names(folder)
        return int(names[-1]) if names else 0


def name_of(folder: str, number: int) -> str:
    return f"{folder}/{number:010}"
