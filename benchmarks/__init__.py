"""What Greenroom costs, measured against doing it another way.

One file per row (`b01_call` … `b13_growth`), each runnable alone (`python -m benchmarks.b01_call`), all of them with
`python -m benchmarks`. The rules are the same everywhere, because a benchmark that is not fair is an advertisement:

* Both sides run in one run, interleaved (A B A B …), at least five rounds; a figure is the median over the rounds of
  their ratio, with the lowest and the highest beside it. Absolute numbers are context: they belong to one machine.
* Nothing stands without a peer or a physical limit beside it.
* The far end is the bundled echo server, which has no SDK in it, so that the middle is what is measured.
* A benchmark is no test: the tests run each row with tiny counts to see that it works, and assert nothing about time.

A row measures in a process of its own, so none of them inherits another's memory or imports.
"""
