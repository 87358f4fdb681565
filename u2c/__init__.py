"Unified uncertainty calibration: a classifier that says \"I don't know\", on as many known inputs as you allow."
__version__ = "0.2.0"

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .service.classifier import U2CClassifier as U2CClassifier, load as load
    from .core import Outputs as Outputs
    from .left_out import LeftOutU2C as LeftOutU2C
    from .rank import RankU2C as RankU2C
    from .reject import Calibrator as Calibrator, RejectOrClassify as RejectOrClassify
    from .scores.base import Scorer as Scorer, list_scorers as list_scorers
    from .scores.base import make_scorer as make_scorer, register_scorer as register_scorer
    from .sequences import SequenceOutputs as SequenceOutputs, SequenceU2C as SequenceU2C
    from .service.export import export as export
    from .service.sklearn import AbstainingClassifier as AbstainingClassifier
    from .unified import U2C as U2C
    from .service.watch import Watch as Watch

# The public names and their modules: `import u2c` loads none of them, the first use of a name does.
_HOMES = {
    "Outputs": "core",
    "Scorer": "scores.base", "make_scorer": "scores.base", "list_scorers": "scores.base", "register_scorer": "scores.base",
    "Calibrator": "reject", "RejectOrClassify": "reject", "U2C": "unified", "RankU2C": "rank",
    "LeftOutU2C": "left_out",
    "U2CClassifier": "service.classifier", "load": "service.classifier", "AbstainingClassifier": "service.sklearn", "Watch": "service.watch",
    "export": "service.export", "SequenceOutputs": "sequences", "SequenceU2C": "sequences",
}
# `from u2c import *` brings those that every install has; AbstainingClassifier needs the extra "sklearn".
__all__ = ["__version__", *(name for name in _HOMES if name != "AbstainingClassifier")]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    return value


def __dir__() -> list[str]:
    return sorted(globals().keys() | _HOMES.keys())
