"""`penstock graph FILE.py:PIPELINE`: what the queries of a pipeline read, keep and write; starts none of them."""

from __future__ import annotations

import json
from argparse import ArgumentParser, Namespace

from penstock.cli.arguments import add_target, add_wait
from penstock.cli.check import load_without_spark, queries_within
from penstock.cli.output import printable, to_pipe
from penstock.cli.pipeline_file import load
from penstock.cli.run import SLOTS
from penstock.spark_runtime.session import local_session, until_end
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
    pipeline = load_without_spark(args.target)
    spark = local_session("penstock-graph", SLOTS)
    with until_end(spark):
        pipeline = pipeline or load(args.target)
        graph = graph_of(pipeline.name, queries_within(args.wait, pipeline, spark))
    with to_pipe():
        print("\n".join(_lines(graph, args.format)))
    return 0


def _lines(graph: Graph, form: str) -> list[str]:
    """The lines to print; names in the text form cannot control the terminal, and the other forms escape them."""
    if form == JSON:
        return [json.dumps(graph.to_dict())]
    return [graph.mermaid()] if form == MERMAID else [printable(line) for line in graph.text().splitlines()]
