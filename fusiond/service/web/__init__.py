"""The pages: the queue, jobs as they run, answers and how they came about; read-only but for a job's three buttons.

    access.py    who may see them over TCP: one token, by URL, cookie or header
    pages.py     the routes
    views.py     what a page shows, read from the store
    plots.py     pictures, as SVG
    templates/   Jinja2; static/: one style sheet, one script

No build step, no foreign host: everything that a browser loads comes from here.
"""
