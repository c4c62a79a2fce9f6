"""What a way to log in consists of, on both sides: that which comes with the package, and others.

A login is a dialogue: the client sends a message, the bookie answers, and so on until both are satisfied. All methods
are called in an event loop, so they must not block.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Peer:
    """Who is at the other end of a connection, before it has said anything.

    Parameters
    ----------
    address
        Where it is, for logs.
    certificate
        The client's certificate in DER form, which TLS has verified. None: it has shown none.
    """

    address: str
    certificate: bytes | None = None


@dataclass(frozen=True, slots=True)
class LoginAnswer:
    """A bookie's answer to a message of a login.

    Parameters
    ----------
    message
        The bytes for the client. They may be empty.
    names
        The names of the peer that has logged in, of the form ``kind:name``, such as ``user:spark``. Empty: the login
        goes on.
    """

    message: bytes
    names: tuple[str, ...] = ()


class ClientLogin(ABC):
    """The client's side of one login."""

    @abstractmethod
    def answer(self, message: bytes | None) -> bytes | None:
        """Return the next message for the bookie.

        Parameters
        ----------
        message
            What the bookie has answered. None: the login begins.

        Returns
        -------
        bytes or None
            The message. None: the login has succeeded, and nothing more is sent.

        Raises
        ------
        BookKeeperError
            If the bookie's answer is wrong. The connection is closed.
        """


class ClientAuthProvider(ABC):
    """How a client logs in at bookies. One for all connections of a client.

    A subclass sets ``plugin`` to the name of this way of logging in, by which bookies know it, too.

    Parameters
    ----------
    file
        The value of ``authProviderFile``. Empty: not set.

    Raises
    ------
    InvalidArgumentError
        If the file is wrong.
    """

    plugin = ""

    @abstractmethod
    def __init__(self, file: str) -> None: ...

    @abstractmethod
    def begin(self, host: str) -> ClientLogin:
        """Begin a login at a bookie.

        Parameters
        ----------
        host
            Where the bookie is.

        Returns
        -------
        ClientLogin
            The client's side of this login.
        """


class BookieLogin(ABC):
    """The bookie's side of one login."""

    @abstractmethod
    def answer(self, message: bytes) -> LoginAnswer:
        """Answer a message of the client.

        Parameters
        ----------
        message
            What the client sent. Anybody may send anything.

        Returns
        -------
        LoginAnswer
            The answer. With ``names`` the login has succeeded.

        Raises
        ------
        BookKeeperError
            If the login fails. The client is told that it fails, and the connection is closed. The error's text is for
            the bookie's log.
        """


class BookieAuthProvider(ABC):
    """How clients log in at a bookie. One for all connections of a bookie.

    A subclass sets ``plugin`` to the name of this way of logging in, by which clients know it, too.

    Parameters
    ----------
    file
        The value of ``authProviderFile``. Empty: not set.

    Raises
    ------
    InvalidArgumentError
        If the file is wrong.
    """

    plugin = ""

    @abstractmethod
    def __init__(self, file: str) -> None: ...

    @abstractmethod
    def begin(self, peer: Peer) -> BookieLogin:
        """Begin the login of a client.

        Parameters
        ----------
        peer
            What is known about it before.

        Returns
        -------
        BookieLogin
            The bookie's side of this login.
        """
