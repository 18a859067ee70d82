"""The policies a second time: naive, slow, and written from the design's sentences alone.

Each model is what a reader of the design would do with pencil and paper: keep everything that ever happened, and look
through it. It shares no code with the policy it is held against, so a mistake has to be made twice to pass.
"""
