"""Measuring tools: run `python -m benchmarks` from the checkout for the list.

Nothing here is imported by the product. Everything talks to 127.0.0.1 only, ends by itself, and leaves its results as
JSON in `.cache/benchmarks/results/`.
"""
