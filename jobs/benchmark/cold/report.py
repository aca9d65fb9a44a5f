"""The report of a run, as a table and as a plot."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from jobs.benchmark.cold.findings import p50_ratio

MEASURED = ("seed", "skips", "possible", "loss", "p50 ms, always", "p99 ms, always", "p50 ratio")
SHIFTED = ("seed", "skips before", "after", "stopped after", "loss until then", "running max", "window max")


def show(report: dict[str, Any], console: Console) -> None:
    settings, where = report["settings"], report["machine"]
    console.print(
        f"[bold]{settings['passages']} passages of {report['material']['name']}[/], {settings['hot_capacity']} hot; "
        f"topics by Zipf {settings['zipf']}; on {where['cores']} x {where['cpu']}"
    )
    for one in report["seeds"]:
        if one["queries_to_calibrate"] is None:
            console.print(f"seed {one['seed']}: skipping had not begun after {settings['learn']} queries")
    table = Table(*MEASURED, title=f"the load the hot tier was made for, {settings['queries']} queries")
    for one in report["seeds"]:
        phase = one["measured"]
        mine, always = phase["calibrated"], phase["always"]
        table.add_row(
            str(one["seed"]),
            f"{phase['skip_share']:.1%}",
            f"{phase['skip_share_possible']:.1%}",
            f"{phase['loss']:.5f}",
            *(f"{mine[which]:.3f}, {always[which]:.3f}" for which in ("p50_ms", "p99_ms")),
            f"{p50_ratio(phase):.2f}",
        )
    console.print(table)
    console.print(
        "Possible: for one who knew what each query would lose. Loss: recall@"
        f"{settings['k']} against policy always, over all queries; the budget is {settings['budget']}. "
        "Ratio: always over calibrated."
    )
    table = Table(*SHIFTED, title=f"after the load shifted, {settings['shifted']} queries")
    for one in report["seeds"]:
        shift = one["shift"]
        table.add_row(
            str(one["seed"]),
            f"{one['measured']['skip_share']:.1%}",
            f"{shift['skip_share_first_2000']:.1%}",
            stopped(shift),
            f"{shift['loss_until_stopped']:.5f}",
            f"{shift['loss_running_max']:.5f}",
            f"{shift['loss_window_max']:.5f}",
        )
    console.print(table)
    console.print(
        "Running: mean loss of all queries since calibration, as the budget is meant. Window: of the last 2,000. "
        "After: of the first 2,000."
    )
    for name, kept in report["kept"].items():
        console.print(f"{name.replace('_', ' ')}: {kept['seeds']} of {kept['of']} seeds", highlight=False)


def stopped(shift: dict[str, Any]) -> str:
    if not shift["skipping_when_it_came"]:
        return "was not skipping"
    count = shift["queries_until_stopped"]
    return "never" if count is None else f"{count} queries"


def plot(report: dict[str, Any], path: Path) -> bool:
    """Write the plot as SVG; False where matplotlib is not installed."""
    try:
        import matplotlib as mpl
        from matplotlib.figure import Figure
    except ImportError:
        return False
    settings, seeds = report["settings"], report["seeds"]
    budget = settings["budget"]
    with mpl.rc_context({"svg.hashsalt": "nearline", "svg.fonttype": "none", "font.size": 9}):
        figure = Figure(figsize=(8, 6), layout="constrained")
        losses, shares, states = figure.subplots(
            3, 1, sharex=True, height_ratios=[3, 2, 0.25 * len(seeds) + 0.5]
        )
        for one in seeds:
            line = one["series"]
            label = one["seed"] == seeds[0]["seed"]
            x = line["queries"]
            losses.plot(
                x, line["loss_window"], color="tab:blue", alpha=0.45, lw=1, label="last 2,000" * label
            )
            losses.plot(x, line["loss_running"], color="tab:blue", lw=1.6, label="since calibration" * label)
            shares.plot(x, smooth(line["skip_share"]), color="tab:green", lw=1.2)
            states.fill_between(
                x,
                one["seed"] - 0.35,
                one["seed"] + 0.35,
                where=line["skipping"],
                color="tab:green",
                alpha=0.6,
                lw=0,
            )
        losses.axhline(budget, color="black", lw=1, ls="--", label="budget")
        losses.axhline(2 * budget, color="tab:red", lw=1, ls="--", label="twice the budget")
        losses.set_ylim(0, max(2.4 * budget, losses.get_ylim()[1]))
        losses.set_ylabel(f"recall@{settings['k']} lost")
        losses.legend(loc="upper left", fontsize=8)
        losses.set_title(
            f"{settings['passages']:,} passages, {settings['hot_capacity']:,} hot, topics by Zipf {settings['zipf']}, "
            f"{len(seeds)} seeds"
        )
        shares.set_ylabel("queries that skip")
        shares.set_ylim(0, 1)
        states.set_ylabel("skipping")
        states.set_yticks([one["seed"] for one in seeds], [f"seed {one['seed']}" for one in seeds])
        states.set_ylim(-0.6, len(seeds) - 0.4)
        states.set_xlabel("queries since calibration; the load shifts at the dotted line")
        for axes in (losses, shares, states):
            axes.axvline(seeds[0]["series"]["shift_at"], color="grey", lw=1, ls=":")
        figure.savefig(path, metadata={"Date": None})
    return True


def smooth(shares: list[float], points: int = 10) -> list[float]:
    """Mean of the last few points: enough to read, short enough to show a stop."""
    return [
        sum(part) / len(part)
        for part in (shares[max(0, at - points + 1) : at + 1] for at in range(len(shares)))
    ]
