"""Tables need pyarrow and pandas, which the extra `dev` installs; without them, their tests are left out."""

from importlib.util import find_spec

collect_ignore = [] if find_spec("pyarrow") and find_spec("pandas") else ["test_tables.py"]
