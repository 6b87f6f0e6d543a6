"""What people look at: tables for the terminal, plots, text to write to files."""
