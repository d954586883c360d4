"""The native engine: local SGD of linear layers as compiled code, where the installation could compile it."""
