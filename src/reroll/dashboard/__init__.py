"""The dashboard: a live, read-only page of one buffer, in a browser.

service   `Dashboard`: the page at a port, inside a running program
app       its routes and its event stream
auth      access: from this host, or with the token
page/     styles and scripts, with charts by plotly; the page loads nothing from the internet
"""

from reroll.errors import missing_extra

try:
    import plotly  # noqa: F401
    import starlette  # noqa: F401
    import uvicorn  # noqa: F401
except ImportError as error:
    raise missing_extra("reroll.dashboard", error.name, "dashboard") from error

from reroll.dashboard.auth import read_token
from reroll.dashboard.service import Dashboard

__all__ = ["Dashboard", "read_token"]
