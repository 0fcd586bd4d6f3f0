# SPDX-License-Identifier: Apache-2.0
"""What owns a handle of the library: closed by hand, by `with`, or when nobody holds it any more."""

from typing import Any, TypeVar

T = TypeVar("T", bound="Closing")


class Closing:
    """close() may be called again, and on an object whose __init__ failed."""

    def close(self) -> None:
        raise NotImplementedError

    def __enter__(self: T) -> T:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def __del__(self) -> None:
        try:
            self.close()
        except Exception:  # at the interpreter's end there is nobody to tell
            pass
