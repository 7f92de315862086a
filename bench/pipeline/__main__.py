"""`python -m bench.pipeline`: see bench.pipeline.run."""

from bench.pipeline.run import main

raise SystemExit(main())
