"""News, from feeds to recommendations: the example of a whole pipeline, and one that can mark its own work.

Feeds are read onto a topic, and six stages clean the articles, take out the copies, find what is trending
and choose something to read for each reader. A generator writes the feeds of a small invented country from a
seed; since it knows which articles are copies, what it made trend and what its readers like, the example ends
with figures instead of claims. `python -m ottla.examples.news` lists the commands; docs/news.md has more.

    vocabulary, writing   subjects, outlets and their words; sentences and headlines made of them
    world                 what happens: stories, copies, bursts, readers, and the truth about all of it
    feeds, player         the same as RSS and Atom files, some of them broken, written as time passes
    feeder                watches feeds and writes what is new to a topic; works with real ones too
    text                  clean text, dates, terms and sketches: plain functions
    stages                the pipeline
    measure, report       the figures, and how they are told
"""
