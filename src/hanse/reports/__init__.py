"""Figures, tables and pages made from run directories."""
