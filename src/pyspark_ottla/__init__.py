"""Found by Spark through its name: registers `format("ottla")`."""
