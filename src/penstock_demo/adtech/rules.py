"""The segments of the demo; `model` says in plain Python what each means."""

from penstock import segment

RULES = [
    segment.rule(
        "interested",
        when="event = 'click'",
        at_least=3,
        within="10 seconds",
        ttl="6 seconds",
        prolong="1 second",
        leave="event = 'optout'",
        to="to-ads",
    ),
    segment.rule(
        "browsing",
        when="event = 'view'",
        at_least=2,
        within="4 seconds",
        ttl="30 seconds",
        prolong="5 seconds",
        until_false=True,
        to="to-ads",
    ),
    segment.rule(
        "abandoned",
        when=segment.absence("event = 'buy'", after="event = 'cart'", within="3 seconds"),
        ttl="5 seconds",
        prolong="1 second",
        to="to-mail",
    ),
    segment.rule(
        "returning",
        when=segment.sequence("event = 'click'", "event = 'buy'", within="15 seconds"),
        ttl="8 seconds",
        prolong="1 second",
        to="to-ads",
    ),
    segment.rule(
        "spenders",
        when="event = 'buy'",
        total="price",
        at_least=20_000,
        within="16 seconds",
        ttl="8 seconds",
        prolong="1 second",
        to="to-mail",
    ),
    segment.rule(
        "buyers",
        when="event = 'buy'",
        ttl="1 hour",
        prolong="10 seconds",
        leave="event = 'optout'",
        to="to-mail",
    ),
]
