"""Floor 1: from a text to the tokens it allows.

    pattern, schema  ->  Expr   (regex.py, json_schema.py: regular expressions and calls between rules)
    Expr             ->  Nfa    (nfa.py: nodes shared from the right)
    Nfa              ->  sets of nodes (subsets.py), joined where they are equivalent (partition.py) to an
                         Automaton (automaton.py: no calls) or Machine (machine.py: a stack of calls)
    Machine x Vocabulary -> Table  (compose.py, tabulation.py: what every token does in every state)
    Table            ->  tokens (matcher.py here for one sequence, sampling/ for batches on a device)

`oracle.py` walks a Machine byte by byte and judges everything after it. This floor needs numpy; numba
makes it faster where present. It knows no torch and no tokenizer library.
"""
