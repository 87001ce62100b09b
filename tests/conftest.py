"""One BLAS thread, as the command line sets it: the arrays are small, and threads cost more than they save."""

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
