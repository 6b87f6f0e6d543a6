"""Folders of training runs."""
