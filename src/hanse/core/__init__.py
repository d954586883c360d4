"""What a mechanism is made of: the table of models, parts, the port's types, the books as a value."""
