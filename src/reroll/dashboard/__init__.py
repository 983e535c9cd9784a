"""The dashboard: one page of what a buffer holds and does, live, in a browser. It only reads.

running   `Dashboard`: the page at a port, inside a running program
app       the routes, and what a browser may do with what it gets
access    who may look: this host, or whoever has the token
connections   idle ones are closed
frames    what viewers are sent, written once for all of them
page/     the page: styles and scripts, with charts by plotly, nothing from the internet
"""

from reroll.dashboard.access import read_token
from reroll.dashboard.running import Dashboard

__all__ = ["Dashboard", "read_token"]
