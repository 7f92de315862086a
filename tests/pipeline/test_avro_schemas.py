"""Several Avro schemas in one topic: a value is read with the one its id names, and resolved as Avro says."""

from __future__ import annotations

import io
import json
import struct
from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import fastavro
import pyarrow as pa
import pytest

from ottla.pipeline import StageError, stage, topic
from ottla.pipeline.testing import PipelineDriver
from ottla.pipeline.values.avro import decode_array, explain_avro

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

MILLIS = {"type": "long", "logicalType": "timestamp-millis"}
MICROS = {"type": "long", "logicalType": "timestamp-micros"}
PRICE = {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2}


def record(*fields: tuple[str, Any] | tuple[str, Any, Any], name: str = "User") -> dict[str, Any]:
    made = [
        {"name": each[0], "type": each[1], **({"default": each[2]} if len(each) > 2 else {})}
        for each in fields
    ]
    return {"type": "record", "name": name, "fields": made}


OLD = record(("id", "int"), ("name", "string"), ("gone", "string"))
SIZE = record(("width", "int"), ("at", MILLIS), name="Size")
READER = record(
    ("name", ["null", "string"], None),
    ("id", "long"),
    ("at", MILLIS, 1000),
    ("price", PRICE, "\u0001\u0000"),
    ("size", SIZE, {"width": 3, "at": 2000}),
    ("tags", {"type": "array", "items": "string"}, []),
)


def value(number: int, schema: Any, content: Any) -> bytes:
    stream = io.BytesIO()
    stream.write(struct.pack(">bI", 0, number))
    fastavro.schemaless_writer(stream, fastavro.parse_schema(schema), content)
    return stream.getvalue()


def decoder(reader: Any, schemas: dict[int, Any]) -> Callable[..., list[Any]]:
    texts = tuple((number, json.dumps(each)) for number, each in schemas.items())

    def decode(*values: bytes | None) -> list[Any]:
        array = decode_array(pa.array(values, pa.binary()), json.dumps(reader), "confluent", texts)
        rows: list[Any] = array.to_pylist()
        for row, each in zip(rows, values, strict=True):
            if row is not None and row.pop("_ottla_corrupt"):
                row.clear()
                row["bad"] = explain_avro(each, json.dumps(reader), "confluent", texts)
        return rows

    return decode


def test_fields_are_found_by_name_widened_and_filled_with_defaults() -> None:
    decode = decoder(READER, {3: OLD, 7: READER})
    old = value(3, OLD, {"id": 5, "name": "Ada", "gone": "x"})
    new = {
        "name": None,
        "id": 2**40,
        "at": datetime(2026, 1, 1, tzinfo=UTC),
        "price": Decimal("1.50"),
        "size": {"width": 1, "at": datetime(2026, 1, 2, tzinfo=UTC)},
        "tags": ["a"],
    }
    by_default = {
        "name": "Ada",
        "id": 5,
        "at": datetime.fromtimestamp(1, UTC),
        "price": Decimal("2.56"),
        "size": {"width": 3, "at": datetime.fromtimestamp(2, UTC)},
        "tags": [],
    }
    # Twice, because a default must not change from row to row.
    assert decode(old, value(7, READER, new), None, old) == [by_default, new, None, by_default]


def test_an_unresolvable_schema_makes_a_bad_record_with_a_reason() -> None:
    other = record(("id", "string"), name="User")
    nameless = record(("name", "string"))
    micros = record(("id", "long"), ("at", MICROS))
    decode = decoder(READER, {1: other, 2: nameless, 3: micros, 4: OLD})
    rows = decode(
        value(1, other, {"id": "x"}),
        value(2, nameless, {"name": "x"}),
        value(3, micros, {"id": 1, "at": 5}),
        value(9, OLD, {"id": 1, "name": "x", "gone": ""}),
        value(4, OLD, {"id": 1, "name": "x", "gone": ""})[:-2],
        b"\x01abcdef",
    )
    reasons = [row["bad"] for row in rows]
    assert reasons[0].startswith("not Avro of this schema:")
    assert reasons[1].startswith("not Avro of this schema:") and "id" in reasons[1]
    assert reasons[2] == (
        "the schema it was written with has another type: field at is timestamp-micros, and timestamp-millis"
        " is expected"
    )
    assert reasons[3] == "written with schema 9, which is not among the schemas (1, 2, 3, 4)"
    assert reasons[4].startswith("not Avro of this schema: the value ends too early")
    assert reasons[5] == "no registry prefix: the first byte is 0x01, not 0"


@pytest.mark.timeout(300)
def test_a_stage_reads_a_topic_with_two_schemas(spark: SparkSession, tmp_path: Path) -> None:
    folder = tmp_path / "schemas"
    folder.mkdir()
    (folder / "user-3.avsc").write_text(json.dumps(OLD))
    (folder / "7.avsc").write_text(json.dumps(READER))

    @stage(
        topic("users", avro=READER, framing="confluent", schema_id=7, schemas=folder),
        to=topic("names"),
        name="names",
    )
    def names(users: DataFrame) -> DataFrame:
        return users.select("id", "name", "price")

    with PipelineDriver([names], spark=spark) as shop:
        shop.feed("users", value(3, OLD, {"id": 5, "name": "Ada", "gone": "x"}))
        shop.feed("users", value(4, OLD, {"id": 6, "name": "Ben", "gone": "x"}))
        assert shop.rows("names") == [{"id": 5, "name": "Ada", "price": Decimal("2.56")}]
        (letter,) = shop.dead_letters("names")
        assert letter.header("ottla.reason") == "written with schema 4, which is not among the schemas (3, 7)"

    (folder / "8.avsc").write_text('{"type": "record"}')

    @stage(topic("users", avro=READER, framing="confluent", schemas=folder), to=topic("x"), name="broken")
    def broken(users: DataFrame) -> DataFrame:
        return users

    with pytest.raises(StageError, match="topic users: schema 8"):
        PipelineDriver([broken], spark=spark)


def test_folders_of_schemas_that_cannot_be_used_are_refused(tmp_path: Path) -> None:
    def declare(framing: Any = "confluent") -> Any:
        return topic("a", avro=OLD, framing=framing, schemas=tmp_path / "s")

    with pytest.raises(StageError, match='it needs framing="confluent"'):
        declare("plain")
    with pytest.raises(StageError, match="no folder of schemas at"):
        declare()
    (tmp_path / "s").mkdir()
    with pytest.raises(StageError, match="has no schemas"):
        declare()
    (tmp_path / "s/user.avsc").write_text("{}")
    with pytest.raises(StageError, match="does not say its id; call it like user-7"):
        declare()
    (tmp_path / "s/user.avsc").rename(tmp_path / "s/user-7.avsc")
    (tmp_path / "s/7.json").write_text("{}")
    with pytest.raises(StageError, match="are both schema 7"):
        declare()
    (tmp_path / "s/7.json").write_text("{")
    (tmp_path / "s/user-7.avsc").unlink()
    with pytest.raises(StageError, match="is not JSON"):
        declare()
