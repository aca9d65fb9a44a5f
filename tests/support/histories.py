"""What may happen to a collection, one random step after the other."""

from __future__ import annotations

import random
from collections.abc import Mapping

from indexes.collection.collection import Collection
from tests.support.vectors import World, delete, fill, rebuild

DOCUMENTS = range(200)
STEPS = {"fill": 50, "delete": 30, "settle": 12, "rebuild": 5, "rollback": 3}


def take_step(
    collection: Collection,
    world: World,
    chance: random.Random,
    version: int,
    steps: Mapping[str, int] = STEPS,
) -> None:
    """Write this version of some documents, delete some, seal, rebuild, or roll back if there is something to go back
    to; `steps` are the weights."""
    numbers = chance.sample(DOCUMENTS, chance.choice([1, 3, 40]))
    match chance.choices(list(steps), list(steps.values()))[0]:
        case "fill":
            fill(collection, world, numbers, version=version)
        case "delete":
            delete(collection, numbers)
        case "settle":
            collection.settle()
        case "rebuild":
            rebuild(collection)
        case "rollback" if len(collection.shelf.numbers()) > 1:
            collection.rollback()
