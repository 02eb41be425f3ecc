"""One strategy's answer as a part of another strategy's Program.

others      what a strategy may ask of the other installed ones: who takes a kind of document, and what he makes of it
fragments   a Program of one launch, as a launch over the asking strategy's own names
groups      which nodes of a graph become one: what saves most together, and no cycle

A plugin never imports another one. It writes a document of a kind that another strategy takes (`Strategy.names`), hands
it in as a part (`Strategy.parts`), and puts what the answer launches in the place of the nodes that it computes.
"""

MADE = "@made"
"""The folder, beside a job's file, in which the documents would lie that a strategy makes for another one. They are
in the job's snapshot (`Job.files`), and none is on the disk."""
