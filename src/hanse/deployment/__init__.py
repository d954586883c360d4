"""The federation on Flower: a server app, a client app, and the exchange between them."""
