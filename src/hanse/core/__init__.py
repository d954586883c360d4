"""What a mechanism is made of: the table of models, its parts, messages to and from clients, and the account books."""
