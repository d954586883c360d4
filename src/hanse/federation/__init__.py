"""The port between server and clients, and what stands behind it."""
