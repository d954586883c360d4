"""What every room uses: errors for users, files, locks, random streams, TOML."""
