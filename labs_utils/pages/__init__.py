"""Notebooks to pages: filled with sources, executed, and written as one self-contained HTML file each."""
