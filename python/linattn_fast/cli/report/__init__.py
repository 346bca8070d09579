"""What is said of certificates and layers: wording, coverage of a second file, and the page.

``page.py`` fills ``certificate.html``, a template of Jinja2; ``charts.py`` draws with matplotlib.
Both packages come with the extra ``report`` and are imported when a page is written. Nothing here
reads options or knows a command.
"""
