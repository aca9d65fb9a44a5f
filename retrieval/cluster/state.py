"""The nodes of a cluster as this service sees them, for operators."""

from __future__ import annotations

from aiohttp import web
from prometheus_client.core import Metric

from retrieval.access.auth import PRINCIPAL
from retrieval.cluster.nodes import Node, Nodes
from retrieval.cluster.targets import NODES
from retrieval.handlers.wire import answer
from retrieval.observe.collectors import counter, gauge
from retrieval.wire.collections import ClusterBody, NodeBody

LABELS = ("node", "service")


async def show(request: web.Request) -> web.Response:
    PRINCIPAL.get().require_service()
    nodes = request.app[NODES]
    return answer(
        ClusterBody(
            [
                NodeBody(
                    node=one.name,
                    url=one.url,
                    up=one.shards is not None,
                    why=one.why or None,
                    writes=one.writes,
                    shards={name: held.seq for name, held in sorted(one.shards.shards.items())}
                    if one.shards
                    else {},
                    moving=moving_of(one),
                )
                for one in (nodes.members if nodes else ())
            ],
            nodes.missing() if nodes else [],
        )
    )


def moving_of(node: Node) -> list[str]:
    """Return the shards of a service that come from another node or go to one."""
    return sorted(name for name, held in node.shards.shards.items() if held.moving) if node.shards else []


def metrics(nodes: Nodes) -> list[Metric]:
    return [
        gauge(
            "nearline_node_up",
            "Whether a service of a node answers: 1 or 0",
            LABELS,
            [(one.name, one.url, one.shards is not None) for one in nodes.members],
        ),
        gauge(
            "nearline_node_shards",
            "Shards that a service of a node has",
            LABELS,
            [(one.name, one.url, len(one.shards.shards) if one.shards else 0) for one in nodes.members],
        ),
        gauge(
            "nearline_node_shards_moving",
            "Shards of a service that come from another node or go to one",
            LABELS,
            [(one.name, one.url, len(moving_of(one))) for one in nodes.members],
        ),
        counter(
            "nearline_node_requests",
            "Requests for parts of searches that a service of a node was sent, by outcome",
            (*LABELS, "outcome"),
            [
                (one.name, one.url, outcome, count)
                for one in nodes.members
                for outcome, count in (("answered", one.answered), ("failed", one.failed))
            ],
        ),
    ]
