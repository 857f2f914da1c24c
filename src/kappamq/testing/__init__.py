"""Cluster in a process, for tests of programs that use KappaMQ."""
