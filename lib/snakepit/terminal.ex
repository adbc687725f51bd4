defmodule Snakepit.Terminal do
  @moduledoc """
  The terminal of a worker with `stdio: :pty`, for programs that want to talk to a person.

      {:ok, worker} =
        Snakepit.Worker.start_link(
          cmd: ["python3", "-i"],
          stdio: {:pty, rows: 40, cols: 120},
          output: {:send, self()}
        )

      Snakepit.Worker.write(worker, "6 * 7\\n")

  The program has a controlling terminal: `isatty(3)` is true for its standard input, output and error, `/dev/tty` is
  this terminal, and Ctrl-C interrupts what is in front. With `:user` the terminal belongs to that user.

  ## Options of the terminal

  #{Snakepit.Options.docs(Snakepit.Worker.Terminal.schema())}

  ## What is typed

  `Snakepit.Worker.write/2` types. A line ends with a newline; until then the program does not see it, unless it reads
  single keys, as editors do. What is typed is shown, so it is a part of the output, unless `echo: false` or the program
  switches that off, as password prompts do. `modes/1` says whether it is shown at the moment. Lines of output end with
  `\\r\\n`: a terminal makes that of a newline.

  A line that is not finished has room for 4095 bytes, and the kernel drops the rest. Programs that read more than a
  person types need `raw: true`, or a pipe.

  | key | by |
  |---|---|
  | Ctrl-D, the end of input | `Snakepit.Worker.close_input/1`; in the middle of a line it is typed twice, as it has to be |
  | Ctrl-C | `Snakepit.Worker.interrupt/1` |
  | others | `Snakepit.Worker.write/2`: Ctrl-Z is `<<26>>`, the arrow up `"\\e[A"`, Return `"\\r"` |

  ## What is written

  Output goes to the worker's `:output` as it comes, and not in lines, since a prompt is none; only `:logger` waits for
  lines. The end of it is kept for the log and for `Snakepit.Worker.output_tail/1`. Standard error cannot be told apart.
  When the program has ended, what it wrote last is delivered before the worker exits.

  ## The end

  When the worker ends, the terminal is closed. The kernel then sends SIGHUP to the program and to what is in front of
  it, as it does when a person closes a window. Before that, the worker asks its process to end as in any other case,
  but with SIGHUP, and not with SIGTERM: a shell that talks to a person ignores SIGTERM, and would be killed only when
  its `:stop_timeout` is over. `:stop_signal` chooses another one. Programs that ignore SIGHUP (`nohup`) are killed when
  the time is up, like others.

  A worker that loses its process with the guardian starts it again at a new terminal, of the size that it had first.
  """

  alias Snakepit.{Error, Options, Worker}
  alias Snakepit.Terminal.Attached

  @attach [
    detach_key: [
      type: :string,
      default: "\x1D",
      shown: "Ctrl-]",
      doc:
        "what is typed to leave, as the bytes that a terminal sends: Ctrl-P Ctrl-Q is `<<16, 17>>`"
    ]
  ]

  @typedoc """
  `rows` and `cols` are its size. `echo` is whether what is typed is shown, and `canonical` whether the program gets whole
  lines. `eof` and `intr` are the characters for the end of input and the interrupt, 0 where they are switched off.
  """
  @type modes :: %{
          rows: non_neg_integer(),
          cols: non_neg_integer(),
          echo: boolean(),
          canonical: boolean(),
          eof: byte(),
          intr: byte()
        }

  @doc """
  Returns what the terminal of a worker is set to at the moment. Whoever types a password can wait until `echo` is false.
  """
  @spec modes(Worker.worker()) :: {:ok, modes()} | {:error, Error.t()}
  def modes(worker), do: Worker.terminal(worker, :modes)

  @doc """
  Puts the person's own terminal, the one that this BEAM runs in, in front of the terminal of a worker, until the person
  types the detach key or the program ends: `{:ok, :detached}` or `{:ok, :ended}`.

  The person's terminal is in raw mode meanwhile, so every key goes to the program, Ctrl-C too. The worker's terminal
  gets the size of the person's, at once and, within a second, when that changes; it keeps it afterwards. Whatever ends
  this, the person's terminal is set to what it was: after the death of the caller as after `kill -9` of the BEAM, when
  the guardian does it. One person at a time can be attached to a worker. What the BEAM itself writes to the terminal,
  such as its log, is shown in between.

  Nobody else may read the terminal at the same time, or each would get some of the keys. What Erlang's shell does there
  depends on the version of OTP:

  | OTP | `iex`, `mix run`, `elixir` |
  |---|---|
  | 26 and newer | works: the shell's reader is suspended meanwhile |
  | 25 | refused, since the reader cannot be suspended. A script works without it: `mix run script.exs < /dev/null` |

  After it, the shell's reader takes one key before it can be suspended again. In a script that attaches twice without
  anything typed in between, the second time is refused.

  It is also refused in a remote shell, whose terminal belongs to another node, and where this BEAM has no terminal or
  does not run in the foreground of it.

  ## Options

  #{Snakepit.Options.docs(@attach)}

  """
  @spec attach(Worker.worker(), keyword()) :: {:ok, :detached | :ended} | {:error, Error.t()}
  def attach(worker, opts \\ []) do
    %{detach_key: key} = Options.validate!(opts, @attach)

    case GenServer.whereis(worker) do
      pid when is_pid(pid) and node(pid) == node() -> Attached.run(pid, "/dev/tty", key)
      _none_or_elsewhere -> {:error, %Error{operation: :attach, reason: :worker_down}}
    end
  end
end
