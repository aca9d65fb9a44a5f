"""nearline explain"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click
import msgspec
from rich.markup import escape

from jobs.commands.connection import ask
from jobs.commands.labels import SCORES, TIERS
from jobs.commands.options import COLLECTION, JSON, URL
from jobs.commands.output import console, print_json

# What has an argument or an option of its own.
OWN = {"query", "document_id", "passage", "k", "mode", "filter"}


@click.command(
    epilog="Example: nearline explain -c docs --document refunds 'how do I get my money back' -k 5"
)
@click.argument("query")
@URL
@COLLECTION
@click.option("--document", required=True, help="Id of the document to follow.")
@click.option("--passage", type=int, help="One of its passages, from 0. [default: whichever ranks best]")
@click.option("-k", type=int, default=10, show_default=True, help="Hits wanted.")
@click.option("--mode", type=click.Choice(["hybrid", "dense", "lexical"]), help="[default: the service's]")
@click.option("--filter", "condition", help="A filter in JSON, as for `nearline search`.")
@click.option(
    "--options", "others", help="Other options of the search in JSON, such as '{\"min_score\": 0.2}'."
)
@JSON
def command(
    query: str,
    url: str,
    collection: str,
    document: str,
    passage: int | None,
    k: int,
    mode: str | None,
    condition: str | None,
    others: str | None,
    as_json: bool,
) -> None:
    """Explain why a document is or is not among the hits of a search, and which change of the search finds it."""
    wanted: dict[str, Any] = {"query": query, "document_id": document, "k": k}
    wanted |= {name: value for name, value in (("passage", passage), ("mode", mode)) if value is not None}
    if condition:
        wanted["filter"] = decode(condition, "--filter")
    if others:
        more = decode(others, "--options")
        if own := OWN & more.keys():
            raise click.BadParameter(
                f"{min(own)!r} has an argument or an option of its own", param_hint="--options"
            )
        wanted |= more
    answer = ask(url, lambda client: client.explain(collection, **wanted))
    if as_json:
        print_json(answer)
    else:
        show(answer)


def decode(text: str, option: str) -> dict[str, Any]:
    try:
        return msgspec.json.decode(text, type=dict[str, Any])
    except msgspec.DecodeError as error:
        raise click.BadParameter(f"not a JSON object: {error}", param_hint=option) from None


def show(answer: Mapping[str, Any]) -> None:
    """Print the causes in order, the changes that find the document, and its passages."""
    cause = answer["cause"]
    title = f"found at rank {answer['found']}" if answer["found"] else f"not found: {cause['kind']}"
    console.print(f"[bold]{title}[/]")
    console.print(f"   {escape(cause['reason'])}")
    for one in answer["also"]:
        console.print(f"   then [bold]{one['kind']}[/]: {escape(one['reason'])}")
    changes = [*filter(None, [answer["change"]]), *answer["others"]]
    for number, change in enumerate(changes):
        patch = msgspec.json.encode(change["patch"]).decode()
        console.print(
            f"{'or' if number else 'change'} [cyan]{escape(patch)}[/]: rank {change['verified_rank']}, verified"
        )
    if not changes and not answer["found"]:
        console.print("no change of the search was found that finds it")
    elif answer.get("within_k") is False:
        console.print("no change that was tried brings it among the first hits as asked")
    for one in answer["passages"]:
        console.print(f"[dim]{escape(describe_passage(one))}[/]")
        if one["words"]:
            console.print(f"[dim]   words: {escape(describe_words(one['words']))}[/]")
    console.print(f"[dim]searches run for this: {answer['searches']}; after {answer['seq']} writes[/]")


def describe_passage(passage: dict[str, Any]) -> str:
    """Describe the scores and exact ranks of a passage, and the last stage it reached."""
    parts = [f"passage {passage['passage']} ({TIERS.get(passage['tier'], passage['tier'])})"]
    for name, label in SCORES.items():
        score, rank = passage["scores"][name], passage["exact"][name]
        if score is not None:
            parts.append(f"by {label} {score:.3f}" + (f", place {rank}" if rank else ""))
    place = passage["place"]
    parts.append(f"candidate {place}, score {passage['score']:.4f}" if place else "no candidate")
    return "; ".join(parts)


def describe_words(words: list[dict[str, Any]]) -> str:
    """Describe each word of the query by its share of the score, or the word that replaces it."""
    parts = []
    for one in words:
        near = f" (but {one['near']})" if one["near"] else ""
        parts.append(f"{one['word']} {one['share']:.0%}" if one["score"] else f"no {one['word']}{near}")
    return ", ".join(parts)
