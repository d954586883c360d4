"""The books: who holds how much, and every movement that made it so."""
