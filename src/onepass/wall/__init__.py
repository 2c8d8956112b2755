"""The memory wall: how peak and bandwidth of hardware grew; every figure has its source."""
