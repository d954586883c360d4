"""Texts of instructions and answers, for fine-tuning language models."""
