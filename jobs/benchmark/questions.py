"""What people ask, as caches meet it: few questions often, most of them once, and some in other words."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from indexes.errors import InvalidInput

REWORDINGS = ("please tell me {}", "do you know {}", "i would like to know {}", "{}, please", "question: {}")


def drawn(questions: Sequence[str], count: int, *, zipf: float, reworded: float, seed: int) -> list[str]:
    """`count` draws from `questions`, the one at rank r with a probability in proportion to 1 / r ** `zipf`.

    Ranks are random. A share of `reworded` is asked in other words, one of REWORDINGS.
    """
    rng = np.random.default_rng(seed)
    popularity = 1 / np.arange(1, len(questions) + 1) ** zipf
    ranked = rng.permutation(len(questions))
    rows = ranked[rng.choice(len(questions), count, p=popularity / popularity.sum())]
    wordings = np.where(rng.random(count) < reworded, rng.integers(0, len(REWORDINGS), count), -1)
    return [
        questions[row] if wording < 0 else in_other_words(questions[row], wording)
        for row, wording in zip(rows.tolist(), wordings.tolist())
    ]


def in_other_words(question: str, wording: int) -> str:
    return REWORDINGS[wording].format(question.rstrip(" ?"))


def asked_before(asked: Sequence[str]) -> list[bool]:
    """Of each question whether it came before: what a cache that forgets nothing answers."""
    seen: set[str] = set()
    before = []
    for one in asked:
        before.append(one in seen)
        seen.add(one)
    return before


def window(before: Sequence[bool], length: int, share: float) -> int:
    """Where the first `length` questions begin of which at least `share` came before.

    Raises InvalidInput if there are none.
    """
    ends = np.cumsum([0, *before])
    reached = np.flatnonzero(ends[length:] - ends[:-length] >= share * length)
    if not len(reached):
        raise InvalidInput(f"not so many of {len(before):,} questions came before", param="hit_rate")
    return int(reached[0])
