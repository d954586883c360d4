"""One module a version; each is frozen once released."""
