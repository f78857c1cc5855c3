"""Forward passes of the text model, shared by the tokens of several sessions."""
