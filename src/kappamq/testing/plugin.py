"""Pytest fixtures of KappaMQ, loaded through the `pytest11` entry point."""
