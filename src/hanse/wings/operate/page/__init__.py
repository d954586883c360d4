"""The live page: a run watched through its directory, and each participant's statement behind its own key."""
