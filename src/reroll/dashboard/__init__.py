"""The dashboard: a live, read-only page of one buffer, in a browser.

service   `Dashboard`: the page at a port, inside a running program
app       its routes and its event stream
auth      access: from this host, or with the token
page/     styles and scripts, with charts by plotly; the page loads nothing from the internet
"""

from reroll.dashboard.auth import read_token
from reroll.dashboard.service import Dashboard

__all__ = ["Dashboard", "read_token"]
