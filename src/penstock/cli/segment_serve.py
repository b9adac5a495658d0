"""`penstock segment serve`: deliveries on request over HTTP."""

from __future__ import annotations

import argparse
import threading

from penstock.connect.rest_server import RestServer, bind
from penstock.database.access import Access
from penstock.errors import PenstockError
from penstock.hosts import Hosts, is_loopback
from penstock.ingest.api_keys import ApiKeys
from penstock.ingest.ingest_settings import DIGEST
from penstock.ingest.origins import ApiKey
from penstock.segment.member_tables.delivery_server import Deliveries, app
from penstock.segment.member_tables.delivery_sync import Sync
from penstock.signals import listen


def run(args: argparse.Namespace) -> None:
    """Serve until a signal comes."""
    ended = threading.Event()
    listen(ended)
    access = ApiKeys(_keys(args))
    reach = Access.of(args.hosts, {}, where="segment serve")
    deliveries = Deliveries(lambda name, to: Sync(name, to, args.keyspace, reach, args.servers))
    with bind(args.host, args.port) as bound:
        server = RestServer(app(deliveries, access), bound, Hosts((args.host, *args.allow_host)))
        print(f"taking requests for deliveries at {server.url}/segments/NAME/deliveries", flush=True)
        ended.wait()
        server.close()
        deliveries.close()


def _keys(args: argparse.Namespace) -> list[ApiKey]:
    """The callers' keys; required if other machines can reach the server, as any caller could write to any topic."""
    if wrong := [text for text in args.key if not DIGEST.fullmatch(text.lower())]:
        raise PenstockError(
            f"--key {wrong[0]} is not 64 hexadecimal digits",
            where="segment serve",
            next="make a key: penstock ingest --new-key NAME",
        )
    if not args.key and not is_loopback(args.host):
        raise PenstockError(
            f"without keys, everybody who reaches {args.host} could deliver to any topic",
            where="segment serve",
            next="give --key SHA256, made with: penstock ingest --new-key NAME",
        )
    return [ApiKey(text[:8], bytes.fromhex(text), None) for text in args.key]
