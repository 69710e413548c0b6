"""One reader for each format. JSON readers take records with their lines, table readers a table; all give a draft."""
