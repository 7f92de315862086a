"""Keys and values as bytes and back, with each format, and what may be given as a serializer."""

from __future__ import annotations

import enum
import json
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from uuid import UUID

import confluent_kafka.serialization as confluent
import pydantic
import pytest
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import DecodeError
from google.protobuf.timestamp_pb2 import Timestamp

from ottla.client import Avro, Bytes, ConfigurationError, Json, Protobuf, SerializationContext, Text
from ottla.client.records import Header
from ottla.client.serialization import deserializer_for, serializer_for


class Colour(enum.Enum):
    RED = "red"


@dataclass
class Line:
    name: str
    price: Decimal
    amount: float = 1.0


@dataclass
class Order:
    number: int
    lines: list[Line]
    at: datetime
    colour: Colour | None = None
    tags: dict[str, int] = field(default_factory=dict)
    pair: tuple[int, str] = (0, "")
    day: date | None = None
    ident: UUID | str = ""


ORDER = Order(
    7,
    [Line("tea", Decimal("3.20"), 2.0)],
    datetime(2026, 1, 2, tzinfo=UTC),
    Colour.RED,
    {"a": 1},
    (1, "x"),
    date(2026, 1, 2),
    UUID(int=5),
)

ORDER_SCHEMA = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "number", "type": "long"},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {
            "name": "colour",
            "type": ["null", {"type": "enum", "name": "Colour", "symbols": ["red"]}],
            "default": None,
        },
    ],
}


@dataclass
class SmallOrder:
    number: int
    at: datetime
    colour: Colour | None = None


def test_json_writes_and_reads_dataclasses_with_nested_fields() -> None:
    form = Json(Order)
    data = form.serialize(ORDER)
    assert json.loads(data)["lines"] == [{"name": "tea", "price": "3.20", "amount": 2.0}]
    assert form.deserialize(data) == ORDER
    assert Json().deserialize(data)["colour"] == "red"
    assert form.deserialize(data).lines[0].price + form.deserialize(data).tags["a"] == Decimal("4.20")


def test_json_reads_what_a_newer_writer_added_and_fills_defaults() -> None:
    line = Json(Line).deserialize(b'{"name":"tea","price":"1","amount":2,"new":true}')
    assert line == Line("tea", Decimal(1), 2.0)
    assert Json(Line).deserialize(b'{"name":"tea","price":"1"}').amount == 1.0


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b'{"name":1,"price":"1"}', "Line.name: expected str, got int"),
        (b'{"price":"1"}', "missing 1 required"),
        (b"[]", "expected an object for Line, got list"),
    ],
)
def test_json_that_does_not_fit_the_class_says_which_field(data: bytes, words: str) -> None:
    with pytest.raises(TypeError, match=words):
        Json(Line).deserialize(data)


def test_json_refuses_what_json_does_not_have() -> None:
    with pytest.raises(TypeError, match="JSON has no form for complex"):
        Json().serialize({"a": 1j})
    with pytest.raises(ValueError, match="not JSON compliant"):
        Json().serialize(float("nan"))
    assert Json().serialize({"b": {1}, "o": SmallOrder(1, datetime(2026, 1, 1))}) == (
        b'{"b":[1],"o":{"number":1,"at":"2026-01-01T00:00:00","colour":null}}'
    )


class PricedLine(pydantic.BaseModel):
    name: str
    price: Decimal


class SmallSale(pydantic.BaseModel):
    number: int = pydantic.Field(gt=0)
    at: datetime
    colour: Colour | None = None


class Sale(SmallSale):
    lines: list[PricedLine] = []


SALE = Sale(
    number=3,
    at=datetime(2026, 1, 2, tzinfo=UTC),
    lines=[PricedLine(name="tea", price=Decimal("3.20"))],
    colour=Colour.RED,
)


def test_json_writes_and_reads_pydantic_models() -> None:
    data = Json().serialize(SALE)
    assert json.loads(data) == {
        "number": 3,
        "at": "2026-01-02T00:00:00Z",
        "lines": [{"name": "tea", "price": "3.20"}],
        "colour": "red",
    }
    assert Json(Sale).deserialize(data) == SALE
    assert json.loads(Json().serialize({"sales": [SALE]}))["sales"][0]["number"] == 3
    with pytest.raises(pydantic.ValidationError, match="greater than 0"):
        Json(Sale).deserialize(b'{"number":0,"at":"2026-01-02T00:00:00Z"}')


def test_avro_writes_and_reads_pydantic_models() -> None:
    form = Avro(ORDER_SCHEMA, SmallSale)
    sale = SmallSale(number=3, at=datetime(2026, 1, 2, tzinfo=UTC), colour=Colour.RED)
    assert form.deserialize(form.serialize(sale)) == sale
    with pytest.raises(ValueError, match="more fields than the schema specifies: lines"):
        form.serialize(SALE)


def test_avro_takes_its_schema_from_a_file_text_or_dict(tmp_path: Path) -> None:
    path = tmp_path / "order.avsc"
    path.write_text(json.dumps(ORDER_SCHEMA))
    order = SmallOrder(7, datetime(2026, 1, 2, tzinfo=UTC), Colour.RED)
    written = [
        Avro(each, SmallOrder).serialize(order) for each in (path, str(path), json.dumps(ORDER_SCHEMA))
    ]
    form = Avro(ORDER_SCHEMA, SmallOrder)
    assert set(written) == {form.serialize(order)}
    assert form.deserialize(written[0]) == order
    assert form.deserialize(written[0]).colour is Colour.RED


def test_avro_reads_with_its_schema_what_another_wrote() -> None:
    older = {"type": "record", "name": "Order", "fields": ORDER_SCHEMA["fields"][:2]}
    data = Avro(older).serialize({"number": 1, "at": datetime(2026, 1, 1, tzinfo=UTC)})
    assert Avro(ORDER_SCHEMA, writer=older).deserialize(data)["colour"] is None
    with pytest.raises(ValueError, match="another schema"):
        Avro('{"type":"int"}').deserialize(data)


def test_a_bad_avro_schema_is_a_configuration_error() -> None:
    for bad in ("/no/such/file.avsc", '{"type":"rec"}', "{}"):
        with pytest.raises(ConfigurationError):
            Avro(bad)


def test_protobuf_messages_are_written_and_read() -> None:
    form = Protobuf(Timestamp)  # a class that protoc made
    assert form.serialize(Timestamp(seconds=3, nanos=4)) == b"\x08\x03\x10\x04"
    assert form.deserialize(b"\x08\x03\x10\x04") == Timestamp(seconds=3, nanos=4)
    with pytest.raises(TypeError, match="expected Timestamp, got Duration"):
        form.serialize(Duration(seconds=3))
    with pytest.raises(DecodeError):
        form.deserialize(b"\xff")
    with pytest.raises(TypeError, match="no class of Protobuf"):
        Protobuf(int)


def test_text_and_bytes() -> None:
    assert Text("latin-1").serialize("é") == b"\xe9"
    assert Text().deserialize(b"\xc3\xa9") == "é"
    with pytest.raises(TypeError, match="expected str"):
        Text().serialize(1)
    assert Bytes().serialize(bytearray(b"a")) == b"a"
    assert Bytes().deserialize(b"a") == b"a"
    with pytest.raises(TypeError):
        Bytes().serialize("text")


def in_the_context(value: object, context: SerializationContext) -> bytes:
    context.headers.append(("seen", context.field.encode()))
    return f"{context.topic}/{value}".encode()


class Own:
    def serialize(self, value: object, context: SerializationContext) -> bytes:
        return in_the_context(value, context)


@pytest.mark.parametrize("given", [in_the_context, Own()])
def test_a_serializer_that_takes_a_context_gets_it(given: object) -> None:
    headers: list[Header] = []
    serialize = serializer_for(given, "key")
    assert serialize is not None
    assert serialize(1, "t", headers) == b"t/1"
    assert headers == [("seen", b"key")]


def test_names_functions_formats_and_serializers_of_confluent_may_be_given() -> None:
    for given, value in [
        ("json", 1),
        ("str", "1"),
        ("bytes", b"1"),
        (lambda value: str(value).encode(), 1),
        (Json(), 1),
        (confluent.StringSerializer(), "1"),
        (str.encode, "1"),
    ]:
        serialize = serializer_for(given, "value")
        assert serialize is not None
        assert serialize(value, "t", []) == b"1"
    for back in ("json", int, json.loads, Json()):
        deserialize = deserializer_for(back, "value")
        assert deserialize is not None
        assert deserialize(b"1", "t", []) == 1
    integer = deserializer_for(confluent.IntegerDeserializer(), "key")
    assert integer is not None
    assert integer(b"\0\0\0\1", "t", []) == 1
    assert serializer_for(None, "key") is None


@pytest.mark.parametrize("given", ["xml", 7, Json])
def test_what_is_no_serializer_is_refused_when_the_client_is_made(given: object) -> None:
    with pytest.raises(ConfigurationError):
        serializer_for(given, "value")
