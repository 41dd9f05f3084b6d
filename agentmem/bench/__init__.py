"""Benchmarks: one file each, over conversations that are files."""
