"Epistemic scores u(x), each with its formula, what it claims and how it is held out; found by name."
from . import combined, distances, head, logits, members, more
from .base import list_scorers

# What comes with the package; more may be registered.
names = list_scorers()
