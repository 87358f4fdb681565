"What made the records of the pages; not in the wheel."
