"""Secrets in messages: whatever form a message gives them, none is left; and what was hidden is restored."""

from __future__ import annotations

import json
import logging
import threading
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import assume, given, strategies as st

from penstock.connect.worker.providers import Provided, Provider
from penstock.connect.worker.secrets import (
    SHORT,
    Hiding,
    HidingFormatter,
    Secrets,
    is_secret,
    masked,
    of_config,
    restored,
    unrestored,
)
from penstock.process.secret_settings import HIDDEN

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
SECRET = TEXTS.filter(lambda text: len(text.strip()) >= SHORT and text.strip() not in HIDDEN)


@given(SECRET, TEXTS, TEXTS, st.sampled_from([str, json.dumps, repr, quote, quote_plus]))
def test_a_secret_is_found_in_each_form(secret: str, before: str, after: str, form: object) -> None:
    written = form(secret)  # type: ignore[operator]
    shown = Hiding([{secret: HIDDEN}])(f"{before} {written} {after}")
    # The text around it may have the secret, too.
    assert secret.strip() not in shown.replace(HIDDEN, "\0")
    assert HIDDEN in shown


@given(st.text("abcdefgh", min_size=1, max_size=SHORT - 1), st.text("abcdefgh ", max_size=20))
def test_a_short_secret_is_replaced_as_a_word_only(secret: str, text: str) -> None:
    words = [HIDDEN if word == secret else word for word in text.split(" ")]
    assert Hiding([{secret: HIDDEN}])(text) == " ".join(words)


@given(st.text("abc:/@,?&= hp", min_size=1, max_size=12), st.text("abc:/@,?&= hp", max_size=12))
def test_what_is_hidden_is_restored_and_hiding_is_done_once(user: str, rest: str) -> None:
    config = {"some.url": f"http://{user}@host/{rest}", "other": f"{rest}://{user}", "scylla.password": user}
    shown = masked(config)
    assert masked(shown) == shown
    assert restored(shown, config) == config
    assert restored(config, shown) == config


@given(st.text("abcd", min_size=SHORT, max_size=8))
def test_a_password_of_an_address_is_hidden_wherever_it_is(password: str) -> None:
    assume(password not in HIDDEN)
    text = f"cannot reach http://ann:{password}@h:1/x, https://{password}@i and jdbc:x://h/?a=b&password={password};c=d"
    assert password not in masked({"note": text})["note"]
    assert password not in Hiding([])(text)
    assert Hiding([])("mail ann@example.org: a=b") == "mail ann@example.org: a=b"


@pytest.mark.parametrize(
    ("name", "secret"),
    [
        ("scylla.password", True),
        ("scylla.ssl.keystore.password", True),
        ("scylla.user", False),
        ("topic.prefix", False),
        ("producer.override.ssl.keystore.key", True),
        ("producer.override.sasl.jaas.config", True),
        ("producer.override.linger.ms", False),
        ("value.converter.basic.auth.user.info", True),
        ("transforms.mask.api_key", True),
        ("transforms.token.field", False),
        ("my.pwd", True),
        ("pass", True),
        ("compass.direction", False),
        ("PASSPHRASE", True),
        ("ssl.key.location", False),
    ],
)
def test_names_say_what_is_secret(name: str, secret: bool) -> None:
    assert is_secret(name) is secret
    assert masked({name: "value-of-it"}) == {name: HIDDEN if secret else "value-of-it"}
    assert masked({name: "${env:X}"}) == {name: "${env:X}"}


def test_a_hidden_value_is_restored_only_where_it_was_shown() -> None:
    kept = {"scylla.password": "old", "url": "http://ann:pw@one:1", "plain": "p"}
    changed = {"scylla.password": "new", "url": "http://eve:[hidden]@one:1", "plain": "[hidden]", "added": "[hidden]"}
    assert restored(changed, kept) == changed
    # A word in a property that is no secret may be anything, also this one.
    assert [name for name, _ in unrestored(changed)] == ["url"]
    assert [name for name, _ in unrestored({"new.password": f"x{HIDDEN}"})] == ["new.password"]


@pytest.mark.parametrize(
    ("name", "place", "there", "elsewhere"),
    [
        ("scylla.password", "scylla.cluster.ip.addresses", "one:9042", "evil:9042"),
        ("scylla.password", "scylla.user", "ann", "eve"),
        ("scylla.ssl.keystore.password", "scylla.cluster.ip.addresses", "one:9042", "one:9042,evil:9042"),
        ("value.converter.basic.auth.user.info", "value.converter.schema.registry.url", "http://r:1", "http://e:1"),
        ("producer.override.sasl.jaas.config", "producer.override.sasl.oauthbearer.token.endpoint.url", "a", "b"),
    ],
)
def test_a_hidden_value_is_not_taken_to_another_host_or_user(name: str, place: str, there: str, elsewhere: str) -> None:
    kept = {name: "hush", place: there, "other.url": "x"}
    assert restored({name: HIDDEN, place: there, "other.url": "y"}, kept)[name] == "hush"
    for config in ({name: HIDDEN, place: elsewhere, "other.url": "x"}, {name: HIDDEN}):
        assert restored(config, kept) == config
        ((blamed, message),) = unrestored(config)
        assert blamed == name and "or one for another host or user. Next: give the value itself" in message


def test_what_a_reference_gives_is_replaced_by_the_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    values = {"HOSTS": "node-one:9042, node-two:9042", "FLAG": "true", "PW": "p4ss", "SMALL": "ab"}
    for name, value in values.items():
        monkeypatch.setenv(name, value)
    config = {"hosts": "${env:HOSTS}", "flag": "${env:FLAG}", "scylla.password": "${env:PW}", "note": "${env:SMALL}"}
    found = of_config(Provided({"env": Provider("env")}).resolved(config))
    hide = Hiding([found])
    assert hide("cannot reach node-two:9042 (node-one): true, ab") == (
        "cannot reach ${env:HOSTS} (${env:HOSTS}): true, ab"
    )
    assert hide("user ann with p4ss or 'p4ss'") == "user ann with ${env:PW} or '${env:PW}'"


def test_each_owner_has_its_own_secrets_until_it_gives_others() -> None:
    secrets = Secrets({"own-secret": HIDDEN})
    secrets.keep("a", {"first-secret": "${a}"})
    secrets.keep("b", {"second-secret": "${b}"})
    assert secrets.hide("own-secret first-secret second-secret") == f"{HIDDEN} ${{a}} ${{b}}"
    secrets.keep("a", {})
    assert secrets.hide("own-secret first-secret second-secret") == f"{HIDDEN} first-secret ${{b}}"


def test_the_longest_of_secrets_that_begin_alike_is_replaced() -> None:
    hide = Hiding([{"secret": "<short>", "secret-of-all": "<long>", "of-all": "<end>"}])
    assert hide("secret-of-all, secret, of-all, secretive") == "<long>, <short>, <end>, <short>ive"


def test_a_log_line_hides_its_arguments_and_its_traceback() -> None:
    secrets = Secrets()
    form = HidingFormatter("%(levelname)s %(message)s", secrets)
    secrets.keep("c", {"top-secret": HIDDEN})
    try:
        raise ValueError("no top-secret here")
    except ValueError as error:
        record = logging.LogRecord("x", logging.ERROR, "f", 1, "failed: %r", ("top-secret",), None)
        record.exc_info = (type(error), error, error.__traceback__)
    line = form.format(record)
    assert line.startswith("ERROR failed: '[hidden]'\nTraceback") and line.endswith("ValueError: no [hidden] here")


def test_secrets_are_kept_and_hidden_by_many_threads() -> None:
    secrets, problems = Secrets(), []

    def work(number: int) -> None:
        for i in range(50):
            secret = f"secret-{number}-{i}-"
            secrets.keep(str(number), {secret: HIDDEN})
            if secret in secrets.hide(f"<{secret}>"):
                problems.append(secret)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert problems == []
