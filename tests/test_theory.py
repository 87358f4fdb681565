"The simulations rerun by papermill at another size: the identities must not depend on the numbers they were written with."
from pathlib import Path

import papermill
import pytest

nbs = Path(__file__).parent.parent / "nbs"


@pytest.mark.parametrize("parameters", [dict(n=1500, c=3, seed=1)], ids=str)
def test_the_lemmas_hold_at_another_size(parameters, tmp_path, monkeypatch):
    monkeypatch.setenv("IN_TEST", "1")  # the notebook's last cell then exports nothing
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    done = papermill.execute_notebook(nbs / "paper/07_lemmas.ipynb", tmp_path / "out.ipynb", parameters, cwd=nbs, kernel_name="python3", progress_bar=False)
    injected = [c for c in done.cells if "injected-parameters" in c.metadata.get("tags", [])]
    assert len(injected) == 1 and f"n = {parameters['n']}" in injected[0].source
