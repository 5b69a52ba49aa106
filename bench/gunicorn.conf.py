"""The product's server for the floor, which has nothing to let go of in a new process."""

import runpy

globals().update(
    {
        name: value
        for name, value in runpy.run_path("deploy/gunicorn.conf.py").items()
        if name != "post_fork" and not name.startswith("__")
    }
)
