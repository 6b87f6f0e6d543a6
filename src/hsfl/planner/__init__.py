"""Planners: from a problem to cuts and intervals. numpy and scipy only."""
