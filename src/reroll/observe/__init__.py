"""Look at a buffer, whatever it is, without changing anything.

opening      `open_view`: a file, a server, a buffer on Ray, or one of this process, as one `View`
view         `View`: stats, ledger, metrics, rows by page, one group
files        a file, or a store that somebody else writes, as the verbs that look
group        one group in plain values: prompts, responses, versions and masks as runs
plain        stats and rows in plain values, for JSON
exporting    groups or rollouts to a Parquet or JSON file, part by part
verifying    every checksum of a file, and its ledger
polling      `Poll`: one question at an interval for any number of viewers, with a short history

Only verbs that look are ever called, and none of them counts as a use.
"""

from reroll.observe.opening import open_view
from reroll.observe.polling import Moment, Poll, Rates
from reroll.observe.view import Page, View

__all__ = ["Moment", "Page", "Poll", "Rates", "View", "open_view"]
