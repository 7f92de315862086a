"""The bytes of a record as columns and back: JSON, Avro, text and bytes; with a reason for what is bad."""
