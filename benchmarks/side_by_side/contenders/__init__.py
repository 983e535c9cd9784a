"""A module for each contender; what is in them is told in worker.py, and for those with clients in clients.py."""
