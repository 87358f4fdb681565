"The experiment: run, tables, figures."
