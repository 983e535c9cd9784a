"""Read-only access to a buffer: a saved file, a store in use, a server, a buffer on Ray, or one of this process.

view     `open_view` and `View`: stats, ledger, metrics, pages of rows, one group
poll     `Poll`: one request per interval for any number of viewers, with a short history
plain    stats, rows and rollouts as plain values, for JSON
export   groups or rollouts to a Parquet, JSON or CSV file, part by part
verify   every checksum of a file, and its ledger

No call changes the buffer, and none counts as a use.
"""

from reroll.observe.poll import Moment, Poll, Rates
from reroll.observe.view import Page, View, open_view

__all__ = ["Moment", "Page", "Poll", "Rates", "View", "open_view"]
