"""What the load of `penstock demo adtech` promises: who acts when, so that each action has exactly one right person."""

from __future__ import annotations

from penstock_demo.adtech.load import MARGIN, Progress
from penstock_demo.adtech.site import FRESH, KINDS, SIGN_IN
from penstock_demo.adtech.traffic import Event, Traffic

ALL = 1 << 62


def visitor_of(event: Event) -> str:
    """Identities are named by kind, tracker, visitor and group."""
    return str(next(event[kind] for kind in KINDS if kind in event)).split("-")[2]


def test_a_request_has_one_event_of_each_visitor_and_nobody_acts_unknown() -> None:
    traffic = Traffic("t0", seed=1, size=30)
    known: set[str] = set()
    posted: dict[str, Event] = {}
    for turn in range(60):
        events = traffic.next(20, float(turn), acts=20, passed=ALL)
        visitors = [visitor_of(event) for event in events]
        assert len(set(visitors)) == len(visitors) <= 20
        for event in events:
            waits = [other for other in posted.values() if visitor_of(other) == visitor_of(event)]
            if event["event"] != SIGN_IN:
                assert all(other["id"] in known for other in waits if other["event"] == SIGN_IN)
        posted |= {event["id"]: event for event in events}
        if turn % 5 == 4:
            for id in posted.keys() - known:
                traffic.known(id, float(turn) - FRESH)
            known = set(posted)
    assert {event["event"] for event in posted.values()} == {SIGN_IN, "view", "click", "cart", "buy", "optout"}


def links_of(events: list[Event]) -> list[Event]:
    """Events with identities of two groups."""
    groups = [{str(event[kind]).rsplit("-", 1)[1] for kind in KINDS if kind in event} for event in events]
    return [event for event, some in zip(events, groups, strict=True) if event["event"] == SIGN_IN and len(some) > 1]


def test_a_link_waits_until_the_pipeline_is_done_with_what_was_done_before() -> None:
    traffic = Traffic("t0", seed=1, size=30)
    links: list[Event] = []
    for turn in range(60):
        events = traffic.next(30, float(turn), acts=30, passed=1000)
        links += links_of(events)
        traffic.acknowledged(events, 2000)
        for event in events:
            traffic.known(event["id"], float(turn) - FRESH)
    assert links == []
    assert len(links_of(traffic.next(30, 60.0, acts=30, passed=2001))) > 5


def test_a_link_waits_until_the_persons_of_what_was_done_are_told() -> None:
    traffic = Traffic("t0", seed=1, size=30)
    links: list[Event] = []
    for turn in range(60):
        events = traffic.next(30, float(turn), acts=30, passed=ALL)
        links += links_of(events)
        for event in events:
            if event["event"] == SIGN_IN:
                traffic.known(event["id"], float(turn) - FRESH)
    assert links == []


def test_a_batch_is_done_when_another_one_tells_of_what_came_after_its_changes() -> None:
    progress = Progress()
    progress.saw(10_000, now=12_000)
    progress.saw(11_000, now=12_005)
    assert progress.passed == 0
    # Posted before the changes of the first batch were seen: may be of the same batch.
    progress.saw(12_000, now=14_000)
    assert progress.passed == 0
    progress.saw(12_001, now=14_000)
    assert progress.passed == 10_000 - MARGIN
    progress.saw(14_001, now=16_000)
    assert progress.passed == 12_000 - MARGIN
