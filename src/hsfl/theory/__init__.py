"""The paper's equations, one pure function each, vectorised over plans.

Shapes: cuts (..., M-1) and intervals (..., M) hold one or many plans. Axes of arrays: M tiers, N clients, L layers,
K plans. Tiers, layers and clients count from 0 in arrays and from 1 in everything a person reads.
"""
