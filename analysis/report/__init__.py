"""RunResults in, a page out: headline, caveats, tables and figures as HTML, Markdown and CSV."""
