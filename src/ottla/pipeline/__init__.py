"""Topics to Spark to topics or a lake: stages as plain functions on DataFrames."""
