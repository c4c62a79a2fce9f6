"""``bkctl completion bash|zsh``: shell completion, generated from the parser.

The script contains a table: for each command its words (subcommands, options, choices) with descriptions, and the
options that take a value. It follows the words typed so far, and never starts Python or asks the cluster.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from bk_spark.bkctl.command_line.common import ExitStatus, print_json
from bk_spark.bkctl.command_line.parser import commands_of, make_parser, subcommands_of

_SHELLS: Final = ("bash", "zsh")
#: Values of these kinds are local paths.
_PATHS: Final = ("FILE", "DIRECTORY")


@dataclass(frozen=True, slots=True)
class _Level:
    """What may follow ``path`` (the commands so far): words with descriptions, and for each option that takes a value
    its choices, if known, or None for a path."""

    path: str
    words: dict[str, str]
    values: dict[str, tuple[str, ...] | None]


def add_commands(groups: Any) -> None:
    """Add ``completion``, which needs no cluster."""
    completion = groups.add_parser(
        "completion", help="print a shell script that completes bkctl's commands and options"
    )
    completion.add_argument("shell", choices=_SHELLS)
    completion.set_defaults(run=_completion, without_cluster=True, without_uri=True)


def _completion(options: argparse.Namespace) -> ExitStatus:
    script = _script(options.shell, [*_levels(make_parser(), "")])
    if options.json:
        print_json({"shell": options.shell, "script": script})
    else:
        print(script, end="")
    return ExitStatus.OK


def _levels(parser: argparse.ArgumentParser, path: str) -> Iterator[_Level]:
    words: dict[str, str] = {}
    values: dict[str, tuple[str, ...] | None] = {}
    for action in subcommands_of(parser):
        words |= {choice.dest: choice.help or "" for choice in action._choices_actions}
    for action in parser._actions:
        choices = tuple(map(str, action.choices or ()))
        if action.help is argparse.SUPPRESS:
            continue
        if action.option_strings:
            meaning = (action.help or "") % {**vars(action), "prog": parser.prog}
            words |= dict.fromkeys(action.option_strings, meaning)
            if action.nargs is None:
                kind = action.metavar if isinstance(action.metavar, str) else ""
                values |= dict.fromkeys(action.option_strings, None if kind in _PATHS else choices)
        elif not isinstance(action, argparse._SubParsersAction):
            words |= dict.fromkeys(choices, "")
    yield _Level(path, words, values)
    for name, command in commands_of(parser).items():
        yield from _levels(command, f"{path} {name}".strip())


def _quoted(text: str) -> str:
    return "'" + re.sub(r"\s+", " ", text).replace("'", "'\\''") + "'"


def _script(shell: str, levels: list[_Level]) -> str:
    commands = "|".join(f"{_quoted(level.path)}" for level in levels if level.path)
    options = sorted({option for level in levels for option in level.values})
    template = _BASH if shell == "bash" else _ZSH
    cases = "\n".join(_words_case(shell, level) for level in levels)
    values = "\n".join(_value_cases(shell, levels))
    return (
        template.replace("@COMMANDS@", commands)
        .replace("@WITH_VALUE@", "|".join(options))
        .replace("@WORDS@", cases)
        .replace("@VALUES@", values)
    )


def _words_case(shell: str, level: _Level) -> str:
    if shell == "bash":
        words = _quoted(" ".join(level.words))
    else:
        # zsh shows the text after the first colon.
        words = "\n      ".join(
            _quoted(f"{word}:{meaning}" if meaning else word) for word, meaning in level.words.items()
        )
        words = f"(\n      {words}\n    )"
    return f"    {_quoted(level.path)}) {_NAMES[shell]}={words} ;;"


def _value_cases(shell: str, levels: list[_Level]) -> Iterator[str]:
    """Yield the cases, by command and option, of options whose values are known."""
    for level in levels:
        for option, choices in level.values.items():
            pattern = _quoted(f"{level.path} {option}".strip())
            if choices is None:
                yield f"    {pattern}) kind=path ;;"
            elif choices:
                words = _quoted(" ".join(choices)) if shell == "bash" else f"({' '.join(choices)})"
                yield f"    {pattern}) {_NAMES[shell]}={words} ;;"


#: Name of the script's own variable: ``words`` is taken in zsh.
_NAMES: Final = {"bash": "words", "zsh": "words_"}
_BASH: Final = """\
# bash completion of bkctl: source <(bkctl completion bash)
_bkctl() {
  local IFS=$' \\t\\n' current=${COMP_WORDS[COMP_CWORD]} path='' option='' word i words='' kind=''
  for ((i = 1; i < COMP_CWORD; i++)); do
    word=${COMP_WORDS[i]}
    if [[ -n $option ]]; then option=''; continue; fi
    case $word in
    @WITH_VALUE@) option=$word; continue ;;
    esac
    case "${path:+$path }$word" in
    @COMMANDS@) path="${path:+$path }$word" ;;
    esac
  done
  COMPREPLY=()
  if [[ -n $option ]]; then
    case "${path:+$path }$option" in
@VALUES@
    esac
    if [[ $kind == path ]]; then
      compopt -o filenames 2>/dev/null
      IFS=$'\\n'
      COMPREPLY=($(compgen -f -- "$current"))
      return
    fi
  else
    case "$path" in
@WORDS@
    esac
  fi
  COMPREPLY=($(compgen -W "$words" -- "$current"))
}
complete -F _bkctl bkctl
"""

_ZSH: Final = """\
#compdef bkctl
# zsh completion of bkctl: source <(bkctl completion zsh), after compinit; or a file _bkctl in $fpath.
_bkctl() {
  local path_='' option='' word kind='' i
  local -a words_ given
  given=("${(@)words[2,CURRENT-1]}")
  for word in "${given[@]}"; do
    if [[ -n $option ]]; then option=''; continue; fi
    case $word in
    @WITH_VALUE@) option=$word; continue ;;
    esac
    case "${path_:+$path_ }$word" in
    @COMMANDS@) path_="${path_:+$path_ }$word" ;;
    esac
  done
  if [[ -n $option ]]; then
    case "${path_:+$path_ }$option" in
@VALUES@
    esac
    if [[ $kind == path ]]; then _files; else compadd -a words_; fi
  else
    case "$path_" in
@WORDS@
    esac
    _describe bkctl words_
  fi
}
if [[ ${funcstack[1]} == _bkctl ]]; then _bkctl "$@"; else compdef _bkctl bkctl; fi
"""
