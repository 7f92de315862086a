"""One partition as a replica: what it knows of its peers, and who waits for its offsets."""
