"""The programs of docs/client/libraries.md, run with the libraries that they are about."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka import Message

import ottla
from client.consuming import PATIENCE, until
from client.libraries.environment import environment, registry

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("libraries"), pytest.mark.timeout(1500)]

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "client" / "libraries.md"
PROGRAMS = dict(re.findall(r"^```python\n# (\S+)\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE))

DJANGO = {
    "manage.py": """
import os, sys
from django.core.management import execute_from_command_line
os.environ["DJANGO_SETTINGS_MODULE"] = "settings"
execute_from_command_line(sys.argv)
""",
    "settings.py": """
KAFKA = "127.0.0.1:9092"
INSTALLED_APPS = ["shop"]
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": "shop.db"}}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
""",
    "shop/__init__.py": "",
    "shop/models.py": """
from django.db import models

class Order(models.Model):
    item = models.TextField()

class Invoice(models.Model):
    order = models.BigIntegerField(unique=True)
""",
    "shop/management/commands/order.py": """
from django.core.management.base import BaseCommand
from django.db import transaction
from shop.models import Order
from shop.orders import place_order

class Command(BaseCommand):
    def handle(self, *args, **options):
        try:
            with transaction.atomic():
                place_order("rolled back")
                raise ZeroDivisionError
        except ZeroDivisionError:
            pass
        place_order("tea")
        place_order("milk")
""",
    "shop/management/commands/invoices.py": """
from django.core.management.base import BaseCommand
from shop.models import Invoice

class Command(BaseCommand):
    def handle(self, *args, **options):
        print(Invoice.objects.count())
""",
}
PROTOBUF = """
import ottla
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer, ProtobufSerializer
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

FIELD = descriptor_pb2.FieldDescriptorProto
file = descriptor_pb2.FileDescriptorProto(name="order.proto", package="shop", syntax="proto3")
message = file.message_type.add(name="Order")
message.field.add(name="id", number=1, type=FIELD.TYPE_INT32, label=FIELD.LABEL_OPTIONAL)
message.field.add(name="item", number=2, type=FIELD.TYPE_STRING, label=FIELD.LABEL_OPTIONAL)
pool = descriptor_pool.Default()
pool.AddSerializedFile(file.SerializeToString())
Order = message_factory.GetMessageClass(pool.FindMessageTypeByName("shop.Order"))

registry = SchemaRegistryClient({"url": "http://127.0.0.1:8080/apis/ccompat/v7"})
options = {"use.deprecated.format": False}
serializer = ProtobufSerializer(Order, registry, options)
with ottla.Producer("127.0.0.1:9092", value_serializer=serializer, key_serializer="str") as producer:
    producer.send("orders", Order(id=1, item="tea"), key="first")
with ottla.Consumer(
    "orders",
    bootstrap_servers="127.0.0.1:9092",
    group_id="billing",
    value_deserializer=ProtobufDeserializer(Order, options, registry),
) as consumer:
    value = consumer.poll(60).value
    print(type(value).__name__, value.id, value.item)
print(registry.get_subjects())
"""
REFUSED = """
import ottla
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroSerializer

def attempt(registry, schema, value):
    with ottla.Producer("127.0.0.1:9092", value_serializer=AvroSerializer(registry, schema)) as producer:
        try:
            producer.send("orders", value)
        except ottla.client.SerializationError as error:
            print("refused:", error)

def schema(kind):
    return '{"type": "record", "name": "Order", "fields": [{"name": "id", "type": "%s"}]}' % kind

address = "http://127.0.0.1:8080/apis/ccompat/v7"
registry = SchemaRegistryClient({"url": address})
registry.set_compatibility("orders-value", "BACKWARD")
attempt(registry, schema("int"), {"id": 1})
attempt(registry, schema("int"), {"id": "one"})
attempt(registry, schema("string"), {"id": "one"})
attempt(SchemaRegistryClient({"url": "http://127.0.0.1:1", "max.retries": 0}), schema("int"), {"id": 1})
"""


@pytest.fixture(scope="module")
def python() -> Path:
    return environment()


@pytest.fixture(scope="module")
def schema_registry() -> Iterator[str]:
    with registry() as address:
        yield address


class Run:
    """Programs of the page, with the names of topics and groups and the addresses of this test."""

    def __init__(self, python: Path, servers: str, folder: Path, registry: str = "") -> None:
        self.suffix = uuid.uuid4().hex[:12]
        self._python, self._folder = python, folder
        self._environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "PYTHONUNBUFFERED": "1"}
        self._names = {
            "127.0.0.1:9092": servers,
            "http://127.0.0.1:8080/apis/ccompat/v7": registry,
            '"billing"': f'"billing-{self.suffix}"',
            '"orders"': f'"orders-{self.suffix}"',
            '"orders-value"': f'"orders-{self.suffix}-value"',
            '"invoices"': f'"invoices-{self.suffix}"',
        }

    def write(self, files: dict[str, str]) -> None:
        for name, text in files.items():
            path = self._folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            for ours, theirs in self._names.items():
                text = text.replace(ours, theirs)
            path.write_text(text)

    def finish(self, *command: str) -> str:
        """What a program prints that ends by itself."""
        with subprocess.Popen(
            [self._python, *command],
            cwd=self._folder,
            env={**self._environment, "PYTHONFAULTHANDLER": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as process:
            try:
                output, errors = process.communicate(timeout=4 * PATIENCE)
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGABRT)  # it says where it is
                output, errors = process.communicate()
        assert process.returncode == 0, errors
        return output

    @contextmanager
    def start(self, *command: str) -> Iterator[subprocess.Popen[str]]:
        """A program that goes on until SIGTERM, to which it must react in order."""
        with subprocess.Popen(
            [self._python, *command],
            cwd=self._folder,
            env=self._environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        ) as process:
            late = threading.Timer(4 * PATIENCE, process.kill)
            late.start()
            try:
                yield process
                process.send_signal(signal.SIGTERM)
                process.communicate(timeout=PATIENCE)
                assert process.returncode == 0
            finally:
                late.cancel()
                process.kill()


def lines_until(process: subprocess.Popen[str], last: str) -> list[str]:
    """What it prints and logs up to a line that ends in this."""
    assert process.stdout is not None
    lines: list[str] = []
    for line in process.stdout:
        lines.append(line.strip())
        if line.strip().endswith(last):
            return lines
    raise AssertionError(f"it ended before {last!r}: {lines}")


def test_faststream_reads_models_and_publishes_results(
    python: Path, servers: str, tmp_path: Path, read_all: Callable[[str], list[Message]]
) -> None:
    run = Run(python, servers, tmp_path)
    run.write(PROGRAMS)
    with run.start("fast_billing.py") as process:
        lines_until(process, "billed 1")
    assert [each.value() for each in read_all(f"invoices-{run.suffix}")] == [b"invoice for tea"]


def test_a_table_of_faust_is_there_again_after_a_restart(python: Path, servers: str, tmp_path: Path) -> None:
    run = Run(python, servers, tmp_path)
    run.write(PROGRAMS)
    with ottla.Admin(servers) as admin:
        admin.create_topics(f"orders-{run.suffix}")
    for last in (3, 6):
        with run.start("faust_billing.py", "worker", "-l", "info", "--without-web") as process:
            # Until then it may read records that wait for it twice: it looks for its commits while it reads.
            lines_until(process, "Worker ready")
            with ottla.Producer(servers, value_serializer="json") as producer:
                for number in range(3):
                    producer.send(f"orders-{run.suffix}", {"id": number, "item": "tea"})
            lines_until(process, f"sold tea {last}")
            with ottla.Admin(servers) as admin:
                until(lambda: set(admin.group_offsets(f"billing-{run.suffix}").values()) == {last}, "commit")  # noqa: B023


def test_a_django_command_bills_orders_that_were_committed(
    python: Path, servers: str, tmp_path: Path
) -> None:
    run = Run(python, servers, tmp_path)
    run.write(PROGRAMS | DJANGO)
    run.finish("manage.py", "migrate", "--run-syncdb", "-v", "0")
    run.finish("manage.py", "order")
    with run.start("manage.py", "bill_orders") as process:
        assert lines_until(process, "billed 2") == ["billed 1", "billed 2"]
    with ottla.Admin(servers) as admin:
        offsets = admin.group_offsets(f"billing-{run.suffix}")
    assert list(offsets.values()) == [2]
    with ottla.Producer(servers, value_serializer="json") as producer:
        producer.send(f"orders-{run.suffix}", {"id": 2, "item": "milk"})
        producer.send(f"orders-{run.suffix}", {"id": 3, "item": "tea"})
    with run.start("manage.py", "bill_orders") as process:
        lines_until(process, "billed 3")
    assert run.finish("manage.py", "invoices") == "3\n"


def test_avro_with_a_registry(python: Path, servers: str, schema_registry: str, tmp_path: Path) -> None:
    run = Run(python, servers, tmp_path, schema_registry)
    run.write(PROGRAMS)
    assert run.finish("registered_orders.py") == "{'id': 1, 'item': 'tea'}\n"
    with ottla.Consumer(
        f"orders-{run.suffix}", bootstrap_servers=servers, group_id=f"raw-{run.suffix}"
    ) as consumer:
        record = consumer.poll(PATIENCE)
        assert record is not None
        assert record.value[:1] == b"\0", "the mark of a registered schema, then its id in four bytes"
        assert record.value[5:] == b"\x02\x06tea"


def test_protobuf_with_a_registry(python: Path, servers: str, schema_registry: str, tmp_path: Path) -> None:
    run = Run(python, servers, tmp_path, schema_registry)
    run.write({"program.py": PROTOBUF})
    value, subjects = run.finish("program.py").splitlines()
    assert value == "Order 1 tea"
    assert f"orders-{run.suffix}-value" in subjects


def test_what_a_registry_refuses_is_not_sent(
    python: Path,
    servers: str,
    schema_registry: str,
    tmp_path: Path,
    read_all: Callable[[str], list[Message]],
) -> None:
    run = Run(python, servers, tmp_path, schema_registry)
    run.write({"program.py": REFUSED})
    refused = run.finish("program.py").splitlines()
    assert len(refused) == 3, refused
    for line in refused:
        assert line.startswith(f"refused: cannot serialize the value of a record to 'orders-{run.suffix}'")
    assert len(read_all(f"orders-{run.suffix}")) == 1
