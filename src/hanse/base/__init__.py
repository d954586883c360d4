"""What every other package uses: errors for users, files, locks, random streams, TOML."""
