"""Examples that ship with Ottla: whole programs to run, read and change."""
