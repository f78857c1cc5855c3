"""``bench bits``: whether a row's bits depend on who else is in its pass, and what it costs that
they do not. No timing of whole decodes; that is ``bench pipelines``."""
