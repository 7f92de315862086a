"""One partition as a replica: what it knows of its peers, and which requests wait for its offsets."""
