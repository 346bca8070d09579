"""Tokens and streams under feature maps: maps tried on the data, and sources of mapped parts."""
