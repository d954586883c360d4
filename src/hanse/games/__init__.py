"""Game theory alone: arrays in, arrays out; no learning, no files, no clients."""
