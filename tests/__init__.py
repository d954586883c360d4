"""The tests, a room after the other; a package, so that no other one called tests is found in its place."""
