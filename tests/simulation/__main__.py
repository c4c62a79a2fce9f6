"""``python -m tests.simulation``: play random histories, replay one of them, or run the exhaustive explorer.

::

    python -m tests.simulation run 20000        so many histories on all cores; other ones every day
    python -m tests.simulation run 500..600     these
    python -m tests.simulation replay 17        one, with every event
    python -m tests.simulation run 2000 --chases        of tails that chase a writer
    python -m tests.simulation run 2000 --late-fences   of recoveries whose fences are late
    python -m tests.simulation run 2000 --logs  histories of logs with many ledgers, instead of one ledger
    python -m tests.simulation replay 17 --logs
    python -m tests.simulation run 2000 --collection    of a bookie's garbage collection
    python -m tests.simulation run 2000 --auditing      of auditors and replication workers
    python -m tests.simulation run 2000 --replication   of the repair of a ledger
    python -m tests.simulation explore          every order of events in the small worlds
    python -m tests.simulation explore --bigger in slower ones; -k chooses among them
"""

from __future__ import annotations

import argparse
import sys
import time

from tests.simulation import runner
from tests.simulation.explorer import Report, explore
from tests.simulation.small_worlds import BIGGER_WORLDS, SMALL_WORLDS
from tests.support.daily import first_seed_of_today


def _seeds(text: str) -> range:
    """Parse a count, of today's seeds, or ``from..to`` (the end is not included)."""
    first, dots, end = text.partition("..")
    if dots:
        return range(int(first), int(end))
    today = first_seed_of_today()
    return range(today, today + int(first))


def _run(arguments: argparse.Namespace) -> bool:
    start = time.monotonic()
    seeds: range = arguments.seeds

    def progress(summary: runner.Summary) -> None:
        if sys.stderr.isatty():
            seconds = time.monotonic() - start
            rate = summary.histories / seconds
            print(f"\r{summary.histories} of {len(seeds)}, {rate:.0f}/s ", end="", file=sys.stderr, flush=True)

    summary = runner.play_all(seeds, arguments.jobs, progress, arguments.kind)
    if sys.stderr.isatty():
        print(file=sys.stderr)
    for failure in summary.failures:
        print(failure, end="\n\n")
    print(f"{summary} (seeds {seeds.start}..{seeds.stop}, {time.monotonic() - start:.0f} s)")
    return not summary.failures


def _replay(arguments: argparse.Namespace) -> bool:
    failure = runner.tell(arguments.seed, arguments.last, arguments.kind)
    if failure is None:
        history = runner.KINDS[arguments.kind](arguments.seed)
        history.play()
        print(f"seed {arguments.seed} holds\n{history.world.story(arguments.last)}")
        return True
    print(failure)
    return False


def _explore(arguments: argparse.Namespace) -> bool:
    worlds = BIGGER_WORLDS if arguments.bigger else SMALL_WORLDS
    names = [name for name in worlds if arguments.name in name]
    good = True

    def progress(report: Report) -> None:
        if sys.stderr.isatty():
            print(f"\r{report.states} states, {report.transitions} transitions ", end="", file=sys.stderr, flush=True)

    for name in names:
        world = worlds[name]
        report = explore(world.world(), world.budget, most_transitions=arguments.most, progress=progress)
        print(f"{name}: {report}", flush=True)
        if report.error is not None:
            good = False
            print(report.story)
    return good and bool(names)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description="The model world's drivers.")
    commands = parser.add_subparsers(required=True)
    run = commands.add_parser("run", help="many random histories")
    run.add_argument("seeds", type=_seeds, help="how many of today's, or from..to")
    run.add_argument("--jobs", type=int, default=None, help="processes; as many as there are cores")
    run.set_defaults(act=_run)
    replay = commands.add_parser("replay", help="one history again")
    replay.add_argument("seed", type=int)
    replay.add_argument("--last", type=int, default=10_000, help="how many of its last events to tell")
    replay.set_defaults(act=_replay)
    for command in (run, replay):
        command.set_defaults(kind="ledgers")
        for kind, what in (
            ("chases", "of tails that chase a writer"),
            ("late-fences", "of recoveries whose fences are late"),
            ("logs", "of logs"),
            ("collection", "of a bookie's garbage collection"),
            ("auditing", "of auditors and replication workers"),
            ("replication", "of the repair of a ledger"),
        ):
            command.add_argument(
                f"--{kind}",
                dest="kind",
                action="store_const",
                const=kind,
                default=argparse.SUPPRESS,
                help=f"{what}, not of one ledger",
            )
    every = commands.add_parser("explore", help="every order of events in small worlds")
    every.add_argument("--bigger", action="store_true", help="worlds that take minutes to hours, and memory")
    every.add_argument("-k", dest="name", default="", help="only worlds whose names contain this")
    every.add_argument("--most", type=int, default=None, help="stop after so many transitions")
    every.set_defaults(act=_explore)
    arguments = parser.parse_args()
    return 0 if arguments.act(arguments) else 1


if __name__ == "__main__":
    sys.exit(main())
