"""The migrations, one module for each version of the schema. A released migration never changes."""
