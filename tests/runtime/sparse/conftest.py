from tests.ops.conftest import emulator

__all__ = ["emulator"]
