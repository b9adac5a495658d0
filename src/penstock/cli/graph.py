"""`penstock graph FILE.py:PIPELINE`: what the queries of a pipeline read, keep and write; starts none of them."""

from __future__ import annotations

import json
from argparse import ArgumentParser, Namespace

from pyspark.sql import SparkSession

from penstock.cli.arguments import add_target, add_wait
from penstock.cli.check import on_trial_with_spark
from penstock.cli.output import printable, to_pipe
from penstock.cli.run import SLOTS
from penstock.query.query import Query
from penstock.run.pipeline import Pipeline
from penstock.watch.graph import Graph, graph_of

TEXT, MERMAID, JSON = "text", "mermaid", "json"


def add(parser: ArgumentParser) -> None:
    add_target(parser)
    parser.add_argument(
        "--format",
        choices=(TEXT, MERMAID, JSON),
        default=TEXT,
        help="text for a terminal, a Mermaid diagram for Markdown, or JSON (default: %(default)s)",
    )
    add_wait(parser)
    parser.set_defaults(run=run)


def run(args: Namespace) -> int:
    def look(pipeline: Pipeline, queries: dict[str, Query], spark: SparkSession) -> Graph:
        return graph_of(pipeline.name, queries)

    graph = on_trial_with_spark(args.target, "penstock-graph", SLOTS, args.wait, look)
    with to_pipe():
        print("\n".join(_lines(graph, args.format)))
    return 0


def _lines(graph: Graph, form: str) -> list[str]:
    """The lines to print; names in the text form cannot control the terminal, and the other forms escape them."""
    if form == JSON:
        return [json.dumps(graph.to_dict())]
    return [graph.mermaid()] if form == MERMAID else [printable(line) for line in graph.text().splitlines()]
