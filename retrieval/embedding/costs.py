"""What a run will cost, learnt from the runs that were: seconds = c + a * tokens + b * texts * longest^2.

`tokens` counts padding. The first term is what every run costs, the second the matrix products, the third attention.
Least squares over runs that fade with age, held to a first guess where they tell nothing (ridge regression, Hoerl and
Kennard 1970): thousands of runs of one shape say what that shape costs, and leave the rest as it was guessed.
Three unknowns are solved for in plain Python: an array costs more than what is done with so few numbers.
"""

from __future__ import annotations

from dataclasses import dataclass

Three = tuple[float, float, float]
# The upper triangle of a symmetric matrix, row by row: 11 12 13 22 23 33.
Upper = tuple[float, float, float, float, float, float]

FORGETTING = 0.99
SURPRISE_MAX = 3.0  # a run that took longer than this many times its estimate was held up by something else
PRIOR = (0.0003, 0.00004, 0.00000005)  # seconds: a small encoder on a laptop, until the first runs were seen
PRIOR_RUNS = 0.1  # how many runs the first guess weighs
SHORTEST_S = 1e-5
SCALE = (1.0, 100.0, 10_000.0)  # brings the three terms to like size
PRIOR_SCALED = tuple(price * scale for price, scale in zip(PRIOR, SCALE))


@dataclass(slots=True)
class Load:
    """Texts that wait, as the cost sees them: their number, their tokens, and the sum of their squared lengths."""

    texts: int = 0
    tokens: int = 0
    squares: int = 0

    def add(self, length: int, sign: int = 1) -> None:
        self.texts += sign
        self.tokens += sign * length
        self.squares += sign * length * length


class CostModel:
    """Predicts runs. `learn` from one thread at a time; `seconds` from any."""

    def __init__(self) -> None:
        self._products: Upper = (0.0, 0.0, 0.0, 0.0, 0.0, 0.0)
        self._sums: Three = (0.0, 0.0, 0.0)
        self.base, self.per_token, self.per_square = PRIOR
        self.runs = 0

    def seconds(self, texts: int, longest: int) -> float:
        """One run of so many texts, all padded to `longest` tokens."""
        return self.base + self.per_token * texts * longest + self.per_square * texts * longest * longest

    def seconds_of(self, load: Load) -> float:
        """Everything in `load`, one core working, as if each text ran alone: an upper bound."""
        return self.base * load.texts + self.per_token * load.tokens + self.per_square * load.squares

    def learn(self, texts: int, longest: int, seconds: float) -> None:
        """Take in how long a run took. One that was held up counts as no longer than SURPRISE_MAX estimates."""
        expected = max(self.seconds(texts, longest), SHORTEST_S)
        if self.runs:
            seconds = min(seconds, SURPRISE_MAX * expected)
        # In shares of what was expected: otherwise the noise of long runs would drown what short ones tell.
        x = 1.0 / SCALE[0] / expected
        y = texts * longest / SCALE[1] / expected
        z = texts * longest * longest / SCALE[2] / expected
        share, keep = seconds / expected, FORGETTING
        xx, xy, xz, yy, yz, zz = self._products
        self._products = (
            keep * xx + x * x,
            keep * xy + x * y,
            keep * xz + x * z,
            keep * yy + y * y,
            keep * yz + y * z,
            keep * zz + z * z,
        )
        xs, ys, zs = self._sums
        self._sums = (keep * xs + x * share, keep * ys + y * share, keep * zs + z * share)
        terms = ridge(self._products, self._sums)
        self.base, self.per_token, self.per_square = (
            max(term, 0.0) / scale for term, scale in zip(terms, SCALE)
        )
        self.runs += 1


def ridge(products: Upper, sums: Three) -> Three:
    """The scaled prices that runs with these moments tell, held to PRIOR as if PRIOR_RUNS runs had told it.

    Elimination without exchanging rows, which a positive definite matrix does not need.
    """
    xx, xy, xz, yy, yz, zz = products
    xs, ys, zs = sums
    p, q, r = PRIOR_SCALED
    xx, yy, zz = xx + PRIOR_RUNS / p**2, yy + PRIOR_RUNS / q**2, zz + PRIOR_RUNS / r**2
    xs, ys, zs = xs + PRIOR_RUNS / p, ys + PRIOR_RUNS / q, zs + PRIOR_RUNS / r
    yy, yz, zz = yy - xy * xy / xx, yz - xy * xz / xx, zz - xz * xz / xx
    ys, zs = ys - xs * xy / xx, zs - xs * xz / xx
    third = (zs - ys * yz / yy) / (zz - yz * yz / yy)
    second = (ys - yz * third) / yy
    return (xs - xy * second - xz * third) / xx, second, third
