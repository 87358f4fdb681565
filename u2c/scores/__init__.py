"Epistemic scores $u(x)$, known by their names."
