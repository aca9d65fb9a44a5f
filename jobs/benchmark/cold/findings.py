"""What the noted queries say: skips, loss in two windows, when skipping stopped; and whether promises were kept."""

from __future__ import annotations

from typing import Any

import numpy as np

from jobs.benchmark.cold.asking import Asked, Flags, Values, mean

WINDOW = 2000  # queries of the moving means
STEP = 50  # queries from one point of a series to the next
WARM_UP = 1000  # queries before the running mean counts: of a handful, one loss is most of the mean

PROMISED_SKIPS = 0.5


def findings(before: Asked, after: Asked, budget: float) -> dict[str, Any]:
    """Figures of one seed. `before` and `after` follow each other, the first query right after calibration."""
    both, shift = before.then(after), len(before)
    running, window = running_mean(both.lost), moving_mean(both.lost, WINDOW)
    stopped = np.flatnonzero(~after.skipping)
    until = int(stopped[0]) + 1 if len(stopped) else None
    return {
        "measured": before.summary(budget),
        "shifted": after.summary(budget),
        "shift": {
            "skipping_when_it_came": bool(before.skipping[-1]),
            "queries_until_stopped": until,
            "skip_share_first_2000": mean(after.skipped[:WINDOW]),
            "loss_until_stopped": mean(after.lost[:until], 6),
            "loss_running_max": round(float(running[shift:].max()), 6),
            "loss_window_max": round(float(window[shift:].max()), 6),
        },
        "measured_loss_running_max": round(float(running[min(WARM_UP, shift - 1) : shift].max()), 6),
        "measured_loss_window_max": round(float(window[min(WINDOW, shift) - 1 : shift].max()), 6),
    }


def series(before: Asked, after: Asked) -> dict[str, Any]:
    """Points for the plot, every STEP queries since calibration; the loss over everything and over the window."""
    both = before.then(after)
    at = np.arange(STEP - 1, len(both), STEP)
    return {
        "window": WINDOW,
        "shift_at": len(before),
        "queries": (at + 1).tolist(),
        "loss_running": rounded(running_mean(both.lost)[at]),
        "loss_window": rounded(moving_mean(both.lost, WINDOW)[at]),
        "skip_share": rounded(moving_mean(both.skipped, STEP)[at]),
        "skipping": both.skipping[at].tolist(),
    }


def verdict(seeds: list[dict[str, Any]], budget: float) -> dict[str, Any]:
    """Median and worst of all seeds, and in how many of them each promise was kept."""
    lows = {
        "skip_share": [one["measured"]["skip_share"] for one in seeds],
        "p50_always_over_calibrated": [p50_ratio(one["measured"]) for one in seeds],
    }
    highs = {
        "loss": [one["measured"]["loss"] for one in seeds],
        "shift_loss_running_max": [one["shift"]["loss_running_max"] for one in seeds],
        "shift_loss_window_max": [one["shift"]["loss_window_max"] for one in seeds],
    }
    # A load that shifts proves nothing where nothing was being skipped.
    shifts = [one["shift"] for one in seeds if one["shift"]["skipping_when_it_came"]]
    kept = {
        "half_skipped": [share >= PROMISED_SKIPS for share in lows["skip_share"]],
        "loss_within_budget": [loss <= budget for loss in highs["loss"]],
        "shift_within_twice_budget": [shift["loss_running_max"] <= 2 * budget for shift in shifts],
        "shift_window_within_twice_budget": [shift["loss_window_max"] <= 2 * budget for shift in shifts],
    }
    spread = {name: (values, min(values)) for name, values in lows.items()}
    spread |= {name: (values, max(values)) for name, values in highs.items()}
    return {
        "over_seeds": {
            name: {"median": round(float(np.median(values)), 6), "worst": worst}
            for name, (values, worst) in spread.items()
        },
        "kept": {name: {"seeds": sum(values), "of": len(values)} for name, values in kept.items()},
    }


def p50_ratio(phase: dict[str, Any]) -> float:
    return round(float(phase["always"]["p50_ms"] / phase["calibrated"]["p50_ms"]), 3)


def running_mean(values: Values) -> Values:
    found: Values = np.cumsum(values) / np.arange(1, len(values) + 1)
    return found


def moving_mean(values: Values | Flags, window: int) -> Values:
    """Mean of the last `window` values up to each; of all there are where they are fewer."""
    sums = np.concatenate([[0.0], np.cumsum(values, dtype=float)])
    ends = np.arange(1, len(values) + 1)
    starts = np.maximum(ends - window, 0)
    found: Values = (sums[ends] - sums[starts]) / (ends - starts)
    return found


def rounded(values: Values) -> list[float]:
    found: list[float] = np.round(values, 6).tolist()
    return found
