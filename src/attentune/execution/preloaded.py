"""Imported last by the server from which workers are forked, so that it ends at once and they share its memory."""

import gc

gc.freeze()
