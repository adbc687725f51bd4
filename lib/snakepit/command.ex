defmodule Snakepit.Command do
  @moduledoc """
  What to run: program, arguments, environment, streams, user and limits.

  `new!/1` checks everything that can be checked without starting anything, and raises
  `ArgumentError` with the key, what was expected and what was given.

  ## Options

  #{Snakepit.Options.docs(Snakepit.Command.Schema.schema())}

  ## The end

  `:stop_signal`, `:stop_timeout` and `:kill_mode` hold in every ending: the death of the BEAM,
  `Snakepit.cleanup/1`, the stop of the application, and for what a process leaves behind when it ends by
  itself. A process that does not get the stop signal first gets it when the leader is gone, and no process gets it
  twice. With `kill_mode: :mixed` it gets SIGKILL then. When the time is up, SIGKILL goes to the whole tree, whatever the
  mode.

  With an `:abort_signal`, a leader that is still there when the time is up gets that signal first, where its stop signal
  went, and SIGKILL after `:abort_timeout`. Where somebody has said how long an ending may take at the most, it does not
  get it: `Snakepit.cleanup/1` and `Snakepit.run_as_script/2` with a timeout.

  Without a `:stop_timeout`, a process has the `grace_period_ms` of the watchdog when the BEAM is gone,
  and `cleanup_on_stop_timeout_ms` when the application stops.
  """

  alias Snakepit.Command.{Request, Schema}
  alias Snakepit.{Options, ProcessKiller}

  @enforce_keys [:cmd]
  defstruct for {key, entry} <- Schema.schema(), do: {key, entry[:default]}

  @type account :: String.t() | non_neg_integer()
  @type limit :: non_neg_integer() | :infinity

  @type t :: %__MODULE__{
          cmd: [String.t(), ...],
          arg0: String.t() | nil,
          env: Enumerable.t(),
          clear_env: boolean(),
          cd: Path.t() | nil,
          umask: 0..0o777 | nil,
          stdio:
            :tail
            | :null
            | :inherit
            | {:file, Path.t()}
            | {:file, Path.t(), :truncate}
            | {:pipe | :stream, binary()}
            | Snakepit.Stdio.t(),
          lifeline: binary() | nil,
          user: account() | nil,
          group: account() | nil,
          groups: [account()] | nil,
          nice: -20..19 | nil,
          rlimits: [{atom(), limit() | {limit(), limit()}}],
          oom_score_adj: -1000..1000 | nil,
          stop_signal: ProcessKiller.signal(),
          stop_timeout: non_neg_integer() | nil,
          kill_mode: :tree | :group | :leader | :mixed,
          abort_signal: ProcessKiller.signal() | nil,
          abort_timeout: non_neg_integer(),
          lease: non_neg_integer() | nil
        }

  @doc """
  A checked command.

      iex> Snakepit.Command.new!(cmd: ["sleep", "60"]).stdio
      :tail
      iex> Snakepit.Command.new!(cmd: "sleep 60")
      ** (ArgumentError) expected :cmd to be a list of a program and its arguments, got: "sleep 60"

  """
  @spec new!(keyword()) :: t()
  def new!(opts), do: struct!(__MODULE__, Options.validate!(opts, Schema.schema()))

  @doc """
  What the guardian is told. `markers` are `{name, value}` pairs that no option can override.

  Users and groups are looked up here, which may take a moment; the answers are kept for half a minute. What no kernel would execute because
  it is too long is refused with `:e2big`.
  """
  @spec to_request(t(), [{String.t(), String.t()}]) ::
          {:ok, map()} | {:error, Snakepit.Error.t()}
  defdelegate to_request(command, markers), to: Request, as: :new
end
