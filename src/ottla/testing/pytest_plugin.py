"""The pytest plugin: fixtures with a real broker in the test's own process."""
