"""The peers Ottla is measured and tested against: real programs, resolved by name, run as processes."""
