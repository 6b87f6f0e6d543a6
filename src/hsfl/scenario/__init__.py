"""The scenario file: its fields, its checks, and what it says about machines, model and training, in numbers."""
