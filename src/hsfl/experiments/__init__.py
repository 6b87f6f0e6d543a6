"""The paper's experiments: a recipe per figure, from settings to runs to a figure, a table and a verdict per claim."""
