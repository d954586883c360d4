"""One run: its settings, how it is built and played, and what it leaves in its directory."""
