"""Streams kept as files: Parquet, Delta or Iceberg, every row exactly once for every reader, without a JVM library."""
