"""One experiment at many settings: a grid over its keys and seeds, a row a run."""
