"""Packages that an integration extends from inside, each at the version that the tests run against."""

from importlib.metadata import PackageNotFoundError, version


def require(package: str, tested: str, integration: str) -> None:
    """Raise ImportError unless a package is installed in the tested version; the message says what to install."""
    remedy = f"pip install {package}=={tested}"
    try:
        found = version(package)
    except PackageNotFoundError:
        raise ImportError(f"{integration} needs {package}, which is not installed: {remedy}") from None
    if found != tested:
        raise ImportError(
            f"{integration} works with {package} {tested}, but {found} is installed: {remedy}, or use another "
            "version of reroll"
        )
