"""Random programs of lookups, for Hypothesis."""

from hypothesis import strategies as st

from linattn_fast import programs
from linattn_fast.programs import Lookup, Program, Record


@st.composite
def random_programs(draw, slots=False):
    """A program of random lookups, and random tokens or a family of contexts, of small numbers."""
    shapes = st.one_of(st.integers(1, 3), st.tuples(st.integers(1, 2), st.integers(1, 2)))
    record = Record(a=draw(shapes), b=draw(shapes), c=programs.Attribute(draw(shapes), signed=True))
    lists = {name: list(each.values()) for name, each in record.attributes.items()}

    def lookup():
        query, key, value, into = (draw(st.sampled_from("abc")) for _ in range(4))
        match = {q: draw(st.sampled_from([None, *lists[key]])) for q in lists[query]}
        targets = st.sampled_from([None, *lists[into]])
        if into == "c":
            weights = st.dictionaries(st.sampled_from(lists["c"]), st.integers(-2, 2), max_size=2)
            targets = st.one_of(targets, weights)
        write = {(q, v): draw(targets) for q in lists[query] for v in lists[value]}
        return Lookup(query, key, value, into, match.get, lambda q, v: write[q, v])

    def token():
        made = {}
        for name in draw(st.sets(st.sampled_from("abc"), min_size=1)):
            made[name] = draw(st.sampled_from(lists[name]))
            if name == "c":
                values = st.sampled_from(lists["c"])
                made[name] = draw(st.dictionaries(values, st.integers(-2, 2), max_size=2))
        return made

    lookups = [lookup() for _ in range(draw(st.integers(1, 3)))]
    if slots:
        sizes = draw(st.lists(st.integers(1, 3), min_size=1, max_size=3))
        return Program(record, lookups, slots=[[token() for _ in range(size)] for size in sizes])
    return Program(record, lookups), [token() for _ in range(draw(st.integers(1, 5)))]
