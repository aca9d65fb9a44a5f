"""Reads a source's configuration of its encoder, and refuses what the graph cannot express."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, cast, get_args

from indexes.base.errors import InvalidInput, NotFound
from retrieval.embedding.models import Makes, Pooling

DECODERS = frozenset({"llama", "mistral", "qwen2", "qwen3"})
ENCODERS = frozenset({"bert", "camembert", "distilbert", "electra", "mpnet", "roberta", "xlm-roberta"})
# Their position ids start after the padding id.
POSITIONS_AFTER_PADDING = frozenset({"camembert", "mpnet", "roberta", "xlm-roberta"})
# A longer window takes hundreds of megabytes to embed one text: attention is quadratic.
TOKENS_MAX = 2048
# Architectures whose score heads are known.
HEADS = frozenset({"bert", "camembert", "roberta", "xlm-roberta"})
MODULES = frozenset({"Transformer", "Pooling", "Normalize"})
# Names that models give to query and document prompts, most common first; "." also matches "_" and "-".
QUERY_PROMPTS = ("query", "search.query", "retrieval.query", "s2p.query")
DOCUMENT_PROMPTS = (
    "document", "passage", "corpus", "search.document", "retrieval.passage", "retrieval.document",
)  # fmt: skip


@dataclass(frozen=True)
class Shape:
    """An encoder's configuration. `config` is all of config.json."""

    architecture: str
    dimensions: int
    heads: int
    layers: int
    tokens_max: int
    pooling: Pooling
    normalise: bool
    query_prefix: str
    document_prefix: str
    config: Mapping[str, Any] = field(default_factory=dict, repr=False)
    makes: Makes = "vectors"
    separator: int | None = (
        None  # token after which the second text of a pair starts, if the model distinguishes both texts
    )


def shape(folder: Path, *, pooling: Pooling | None = None, tokens_max: int | None = None) -> Shape:
    """Read the configuration in `folder`, overridden by `pooling` and `tokens_max`.

    Raises NotFound for a missing configuration, InvalidInput for an unsupported one.
    """
    config = known_config(folder)
    architecture = str(config["model_type"])
    modules: list[dict[str, Any]] = _json(folder / "modules.json") or []
    kinds = [str(module.get("type", "")).rsplit(".", maxsplit=1)[-1] for module in modules]
    if strange := set(kinds) - MODULES:
        raise InvalidInput(f"cannot export an encoder with a {', '.join(sorted(strange))} layer")
    file = pooling_file(modules)
    pooling_config = _json(folder / file)
    if pooling_config is None and "Pooling" in kinds and pooling is None:
        raise NotFound(f"{file} is missing, which says how the token vectors become one", param="pooling")
    pooling_config = pooling_config or {}
    if is_reranker(config):
        return reranker(folder, config, tokens_max)
    query, document = prefixes(_json(folder / "config_sentence_transformers.json") or {})
    found = pooling or _pooling(pooling_config, architecture)
    if pooling_config.get("include_prompt") is False and found == "mean" and (query or document):
        raise InvalidInput("cannot export an encoder that leaves its prompt out of the mean")
    return Shape(
        architecture=architecture,
        dimensions=_size(config, "hidden_size", "dim"),
        heads=_size(config, "num_attention_heads", "n_heads"),
        layers=_size(config, "num_hidden_layers", "n_layers"),
        tokens_max=_tokens_max(folder, config, architecture, tokens_max),
        pooling=found,
        normalise="Normalize" in kinds or not kinds,
        query_prefix=query,
        document_prefix=document,
        config=config,
    )


def is_reranker(config: Mapping[str, Any]) -> bool:
    """Whether this is a cross-encoder: a classifier of pairs with a single score."""
    heads = [str(name) for name in config.get("architectures") or []]
    if not any(name.endswith("ForSequenceClassification") for name in heads):
        return False
    labels = len(config.get("id2label") or range(int(config.get("num_labels", 2))))
    if labels != 1 or config["model_type"] not in HEADS:
        raise InvalidInput(
            f"cannot export {', '.join(heads)} with {labels} labels; rerankers have one, and are of "
            f"{', '.join(sorted(HEADS))}"
        )
    return True


def reranker(folder: Path, config: Mapping[str, Any], tokens_max: int | None) -> Shape:
    architecture = str(config["model_type"])
    segments = int(config.get("type_vocab_size", 1)) > 1
    return Shape(
        architecture=architecture,
        dimensions=1,
        heads=_size(config, "num_attention_heads"),
        layers=_size(config, "num_hidden_layers"),
        tokens_max=_tokens_max(folder, config, architecture, tokens_max),
        pooling="cls",
        normalise=False,
        query_prefix="",
        document_prefix="",
        config=config,
        makes="scores",
        separator=separator(folder) if segments else None,
    )


def separator(folder: Path) -> int:
    """The id of [SEP] in tokenizer.json. Raises NotFound."""
    tokenizer = _json(folder / "tokenizer.json") or {}
    for token in tokenizer.get("added_tokens", []):
        if token.get("content") == "[SEP]":
            return int(token["id"])
    raise NotFound(f"{folder.name}/tokenizer.json has no [SEP], which parts the texts of a pair")


def known_config(folder: Path) -> Mapping[str, Any]:
    """The config.json of `folder`. Raises InvalidInput naming the architecture if it is not supported."""
    config: Mapping[str, Any] = _json(folder / "config.json")
    if not config:
        raise NotFound(f"{folder.name}/config.json is missing: not the folder of an encoder")
    name = config.get("model_type")
    if custom := config.get("auto_map"):
        raise InvalidInput(f"cannot export {name}: it runs code of its own ({', '.join(sorted(custom))})")
    if name not in ENCODERS | DECODERS:
        known = ", ".join(sorted(ENCODERS | DECODERS))
        raise InvalidInput(f"cannot export {name or 'an unnamed architecture'}; known are {known}")
    return config


def _size(config: Mapping[str, Any], *names: str) -> int:
    for name in names:
        if (found := config.get(name)) is not None:
            return int(found)
    raise InvalidInput(f"cannot export {config['model_type']}: its config.json has no {names[0]}")


def _tokens_max(folder: Path, config: Mapping[str, Any], architecture: str, wanted: int | None) -> int:
    """The caller's window, or else the shortest one in the files, at most `TOKENS_MAX`."""
    positions = config.get("max_position_embeddings", 512)
    if architecture in POSITIONS_AFTER_PADDING:
        positions -= config.get("pad_token_id", 1) + 1
    possible = [positions, config.get("sliding_window") or positions]
    if wanted is not None:
        if not 3 <= wanted <= min(possible):
            raise InvalidInput(f"this encoder reads at most {min(possible)} tokens", param="tokens_max")
        return wanted
    possible += [
        (_json(folder / "sentence_bert_config.json") or {}).get("max_seq_length"),
        (_json(folder / "tokenizer_config.json") or {}).get("model_max_length"),
        TOKENS_MAX,
    ]
    return min(int(length) for length in possible if length)


# -- pooling ----------------------------------------------------------------------------------------------------------


def pooling_file(modules: list[dict[str, Any]]) -> str:
    """Path of the pooling configuration, from modules.json. Raises InvalidInput if it is outside the source."""
    named = [module for module in modules if str(module.get("type", "")).endswith("Pooling")]
    folder = PurePosixPath(next((str(module["path"]) for module in named if module.get("path")), "1_Pooling"))
    if folder.is_absolute() or ".." in folder.parts:
        raise InvalidInput(f"modules.json names a folder outside of the source: {folder}")
    return f"{folder}/config.json"


def _pooling(config: Mapping[str, Any], architecture: str) -> Pooling:
    chosen = {
        key.removeprefix("pooling_mode_")
        for key, on in config.items()
        if key.startswith("pooling_mode_") and on
    }
    chosen |= {config["pooling_mode"]} if isinstance(config.get("pooling_mode"), str) else set()
    if not chosen and architecture in DECODERS:
        raise InvalidInput(
            f"the source does not say how {architecture} is pooled; last tokens are usual", param="pooling"
        )
    known = {re.sub("_?tokens?$", "", name) for name in chosen} or {"mean"}
    if len(known) == 1 and known <= set(get_args(Pooling)):
        return cast("Pooling", known.pop())
    raise InvalidInput(
        f"cannot export pooling {', '.join(sorted(chosen))}; mean, cls and last token are known"
    )


# -- prefixes ---------------------------------------------------------------------------------------------------------


def prefixes(config: Mapping[str, Any]) -> tuple[str, str]:
    """Query and document prefixes from sentence-transformers' `prompts`; "" if there are none.

    As in sentence-transformers, a side without its own prompt gets the one named by `default_prompt_name`.
    """
    prompts = {_plain(name): text or "" for name, text in (config.get("prompts") or {}).items()}
    usual = prompts.get(_plain(config.get("default_prompt_name") or ""), "")

    def of(names: tuple[str, ...]) -> str:
        return next((prompts[name] for name in names if name in prompts), usual)

    return of(QUERY_PROMPTS), of(DOCUMENT_PROMPTS)


def _plain(name: Any) -> str:
    return re.sub("[-_]", ".", str(name).lower())


def _json(path: Path) -> Any:
    return json.loads(path.read_text("utf-8")) if path.is_file() else None
