"""A pipeline at work: `loading` finds its stages, `runner` runs them, `supervision` keeps each alive.

What happens is told by Spark (`listening`), kept in one place (`progress`) and shown (`display`, `status`).
"""
