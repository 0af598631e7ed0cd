"""The parts of the report: tables read (`data`), minutes merged (`series`), plots (`plots`, `words`), text.

The page is made of page.html, page.css and page.js: files of the package, put into the one page as they are.
"""
