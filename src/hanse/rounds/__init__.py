"""One round: the loop, its exchange with the clients, and the judge that scores models."""
