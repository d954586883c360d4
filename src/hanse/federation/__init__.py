"""Clients: how they answer a server's requests, what they decide, and what experiments make them do.

The server talks to clients only through the port (:mod:`hanse.core.port`). Behind the port,
:mod:`~hanse.federation.local` plays all clients in one process. On a network, :mod:`~hanse.federation.node` is one
participant, and :mod:`~hanse.federation.codec` packs its messages. Policies (:mod:`~hanse.federation.policy`) are what
a client decides for itself. Behaviours (:mod:`~hanse.federation.behaviour`) change what it does and sends.
:mod:`~hanse.federation.check` checks replies before anything uses them.
"""
