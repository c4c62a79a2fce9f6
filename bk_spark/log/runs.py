"""The runs of the applications that write to one log: their ledgers, and what they have committed."""

from __future__ import annotations

from typing import Final

from bk_spark.bookie.blocking import BlockingWriter
from bk_spark.log.core.applications import check_run
from bk_spark.log.core.registrations import MakeZnodes, registrar
from bk_spark.log.core.steps import LedgerRegistrar
from bk_spark.log.formats.names import app_key, ledger_ids_of
from bk_spark.log.formats.znodes import Application, decode_application
from bk_spark.log.io.blocking import BlockingLog
from bk_spark.protocol.metadata.znodes import TransactionConflictError

_CREATE_ATTEMPTS: Final = 5


class LogRuns:
    """Who writes to a log. Its methods are those of :class:`bk_spark.log.log.Log`."""

    def __init__(self, log: BlockingLog) -> None:
        self._log = log

    def ledger_registrar(self, app: str, run: str) -> LedgerRegistrar:
        """Prepare to register a writer's ledgers. Creates the parent znodes of the registrations if they are missing.

        For callers that create ledgers without :meth:`create_ledger`. A ledger is registered in the transaction that
        creates its metadata, so neither exists without the other. The transaction is refused if the log was deleted or
        replaced, or if the run had no ledgers and a reaper removed its znode meanwhile.

        Parameters
        ----------
        app
            The name of the application.
        run
            The id of the run.

        Returns
        -------
        callable
            Takes a ledger id and returns operations for that transaction. It does no I/O.
        """
        run_path = self._log.paths.run(app, run)
        if self._log.zk.exists(run_path) is None:
            self._log.change(MakeZnodes(self._log.paths, self._log.paths.runs_at(app_key(app)), run_path))
        return registrar(self._log.paths, run_path)

    def create_ledger(self, app: str, run: str) -> BlockingWriter:
        """Create a ledger for a run, and register it in the same transaction.

        Parameters
        ----------
        app
            The name of the application.
        run
            The id of the run.

        Returns
        -------
        BlockingWriter
            The writer of the new ledger.

        Raises
        ------
        NoSuchLogError, LogReplacedError
            If the log was deleted.
        """
        attempts = _CREATE_ATTEMPTS
        while True:
            try:
                return self._log.ledgers.create(self.ledger_registrar(app, run))
            except TransactionConflictError:
                # A reaper has removed the run's znode, which had no ledgers yet, or the log was deleted.
                attempts -= 1
                if not attempts:
                    raise

    def run_ledgers(self, app: str, run: str) -> list[int]:
        """List the ledgers registered for a run.

        Parameters
        ----------
        app
            The name of the application.
        run
            The id of the run.

        Returns
        -------
        list of int
            Their ids, newest first.
        """
        names = self._log.zk.children(self._log.paths.run(app, run)) or []
        return sorted(ledger_ids_of(names), reverse=True)

    def application(self, app: str) -> Application | None:
        """Read what an application has committed.

        Parameters
        ----------
        app
            The name of the application.

        Returns
        -------
        Application or None
            Its last batch and its runs. None if it has committed nothing, or its record was removed.
        """
        self._log.zk.sync(self._log.paths.head)
        self._log.pages.head()
        path = self._log.paths.app(app)
        znode = self._log.pages.get(path)
        return None if znode is None else decode_application(znode.data, path)

    def check_run(self, app: str, run: str) -> None:
        """Check that a run may still commit. Used by tasks whose ledger was fenced.

        Parameters
        ----------
        app
            The name of the application.
        run
            The id of the run.

        Raises
        ------
        RunRetiredError
            If another run took over.
        """
        check_run(self.application(app), run, self._log.name)
