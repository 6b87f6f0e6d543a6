"""Set-up for all tests."""

import os

if "PYTEST_XDIST_WORKER" in os.environ:
    # Workers share the cores: threads of their own would only wait for each other. Before torch or numpy is imported.
    for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.setdefault(variable, "1")
