"""The table as a whole: it holds together, it is quick to make, and its page is up to date."""

from __future__ import annotations

import dataclasses
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from ottla.config import docs
from ottla.config.keys import ConfigKey, Mode, show
from ottla.config.table import BROKER_KEYS, GROUP_KEYS, TOPIC_KEYS, broker_synonyms, nearest
from ottla.storage.log_config import LogConfig

ROOT = Path(__file__).parents[3]
EVERY_KEY = [*BROKER_KEYS.values(), *TOPIC_KEYS.values(), *GROUP_KEYS.values()]


@pytest.mark.parametrize("key", EVERY_KEY, ids=lambda key: f"{key.scope.value}:{key.name}")
def test_every_default_is_allowed_and_every_key_is_explained(key: ConfigKey) -> None:
    if key.default is not None:
        assert key.parse(show(key.default) or "") == key.default
    assert key.doc.endswith((".", "."))
    assert len(key.doc) > 10
    assert key.section


def test_broker_synonyms_of_topic_and_group_keys_exist_and_have_the_same_type() -> None:
    for key in [*TOPIC_KEYS.values(), *GROUP_KEYS.values()]:
        for synonym in key.synonyms:
            broker = BROKER_KEYS[synonym.name]
            if synonym.factor == 1:
                assert broker.type is key.type, key
                assert (
                    broker.default in (key.default, None) or broker.name == "log.flush.scheduler.interval.ms"
                )


def test_no_key_holds_an_underscore_so_that_environment_names_are_plain() -> None:
    assert not [key for key in BROKER_KEYS if "_" in key or "-" in key or key != key.lower()]


def test_the_sizes_of_the_tables_are_those_of_kafka_and_our_own() -> None:
    listed = [key for key in BROKER_KEYS.values() if not key.internal]
    own = [key for key in listed if key.doc.endswith("Ottla's own key.")]
    assert len(listed) == 340 + len(own)
    assert len([key for key in TOPIC_KEYS.values() if not key.internal]) == 33
    assert len(GROUP_KEYS) == 17


def test_keys_of_one_meaning_are_families_with_the_strongest_first() -> None:
    retention = ("log.retention.ms", "log.retention.minutes", "log.retention.hours")
    for name in retention:
        assert broker_synonyms(name) == retention
    assert broker_synonyms("log.flush.interval.ms") == (
        "log.flush.interval.ms",
        "log.flush.scheduler.interval.ms",
    )
    assert broker_synonyms("log.flush.scheduler.interval.ms") == ("log.flush.scheduler.interval.ms",)
    assert broker_synonyms("node.id") == ("node.id",)


def test_topic_keys_can_always_change() -> None:
    assert all(key.mode is Mode.CLUSTER_WIDE for key in TOPIC_KEYS.values())


@pytest.mark.parametrize(
    ("wrong", "right"),
    [("log.retention.hour", "log.retention.hours"), ("nod.id", "node.id"), ("zookeeper.connect", None)],
)
def test_a_misspelt_key_finds_its_nearest(wrong: str, right: str | None) -> None:
    assert nearest(wrong, BROKER_KEYS) == right


def test_the_page_on_configuration_is_up_to_date() -> None:
    page = (ROOT / "docs" / "configuration.md").read_text()
    assert page == docs.configuration_page(), "run: python -m ottla.config.docs > docs/configuration.md"


def test_the_table_is_made_in_a_few_milliseconds(tmp_path: Path) -> None:
    """What a start pays for it: processor time, by the best of some tries, with compiled modules."""
    code = (
        "import enum, functools, re, typing, time, logging, pathlib; began = time.process_time();"
        "from ottla.config.values import BrokerConfig; BrokerConfig.load();"
        "print(time.process_time() - began)"
    )
    environ = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    environ["PYTHONPYCACHEPREFIX"] = str(tmp_path)

    def seconds() -> float:
        run = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, env=environ)
        return float(run.stdout)

    seconds()
    # It takes 4 ms; the rest is for machines that are slow or busy.
    assert min(seconds() for _ in range(5)) < 0.04


# Keys that the code reads without spelling them out in one place.
READ_BY_OTHER_MEANS = {"listeners", "advertised.listeners", "log.dir", "log.dirs", "broker.id"} | {
    "inter.broker.listener.name",
    "ottla.registry",
    "listener.security.protocol.map",
}


def _names_in_the_source() -> set[str]:
    """Of the broker's packages; the pipeline and the clients have settings of clients, some of the same
    name."""
    names: set[str] = set()
    for path in (ROOT / "src" / "ottla").rglob("*.py"):
        if not {"client", "config", "pipeline"} & set(path.parts):
            names |= set(re.findall(r'"([a-z0-9]+(?:\.[a-z0-9]+)+)"', path.read_text()))
    return names


def test_keys_are_marked_as_used_exactly_if_the_code_reads_them() -> None:
    """The page says which keys have an effect. A change that begins to use one removes its mark `unused`."""
    read = _names_in_the_source() | READ_BY_OTHER_MEANS
    log = {field.name.replace("_", ".") for field in dataclasses.fields(LogConfig)} | {
        "internal.segment.bytes"
    }
    topics = {key.name for key in TOPIC_KEYS.values() if key.name in read | log}
    brokers = read | {synonym.name for name in topics for synonym in TOPIC_KEYS[name].synonyms}
    assert {key.name for key in TOPIC_KEYS.values() if key.used} == topics
    assert {key.name for key in BROKER_KEYS.values() if key.used} == {n for n in brokers if n in BROKER_KEYS}
