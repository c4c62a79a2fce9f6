"""Rules of the product, broken on purpose in a copy of its source: named tests must fail (``make mutants``).

The rules and their mutations are in ``lists``, one module for each layer. ``mutation`` says what a mutation is,
``runner`` makes the copies and runs pytest in them. There are no tests here: ``tests/unit/test_mutations.py`` checks
that each mutation still fits the source.

The mutants of the simulators (``mutants.py`` in ``tests/crash`` and in the folders of ``tests/simulation``) break rules
while a history is played, and show that histories find such bugs. Those here show that tests do.
"""
