//! What `--help` says. The manual page has the same commands and options, and more to say of each.

pub const TEXT: &str = "\
usage: snakepit_guardian COMMAND [OPTION...]

Shows and ends what Snakepit's runs have started, from their data directory and without a BEAM.

commands:
  ps                    the workers of all runs that are not over, a line for each
  tree                  their processes, below each other
  history               how runs have ended, and each of their processes
  reap                  what dead runs have left behind; ends it with --yes
  doctor                what this place allows, what is missing, and how to get it
  init -- COMMAND...    runs COMMAND as the first process of a container

options:
  --data-dir DIR        the data directory, instead of SNAKEPIT_DATA_DIR, STATE_DIRECTORY
                        or those in the usual places
  --json                an answer for programs
  --width N             the length of lines, instead of the terminal's
  --watch[=SECONDS]     ps: again and again, every 2 seconds
  --limit N             history: so many runs, instead of 20
  --yes                 reap: ends what it has found
  --grace MS            reap, init: how long processes have to end before SIGKILL
  --instance ID         reap: of this instance, instead of the directory's own
  --help, --version

exit status: 0 all is well; 1 there is something to look at; 2 it could not be done;
64 it was not understood; init exits with the status of its command, or 128 and the signal's number

man page: priv/man/snakepit_guardian.1
";
