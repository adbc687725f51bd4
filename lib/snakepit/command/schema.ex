defmodule Snakepit.Command.Schema do
  @moduledoc false

  # The options of a `Snakepit.Command`, and the checks that only they need.

  alias Snakepit.Options
  alias Snakepit.Options.Type

  # Linux numbers; the only system with a guardian so far. RLIMIT_LOCKS is missing on purpose: it has
  # no effect, and Snakepit marks its processes with it.
  @resources %{
    cpu: 0,
    fsize: 1,
    data: 2,
    stack: 3,
    core: 4,
    rss: 5,
    nproc: 6,
    nofile: 7,
    memlock: 8,
    as: 9,
    sigpending: 11,
    msgqueue: 12,
    nice: 13,
    rtprio: 14,
    rttime: 15
  }

  @unlimited 18_446_744_073_709_551_615

  @account {:custom, &__MODULE__.account/1, "a name or a number"}

  @schema [
    cmd: [
      type: {:custom, &__MODULE__.cmd/1, "a list of a program and its arguments"},
      required: true,
      doc: "`[program | args]`; no shell is involved"
    ],
    arg0: [
      type: {:custom, &__MODULE__.arg0/1, "a string"},
      default: nil,
      shown: "the program",
      doc: "what the program is told that its own name is"
    ],
    env: [
      type: {:custom, &__MODULE__.env/1, "pairs of name and value"},
      default: [],
      doc: "`{name, value}` pairs to set; a value of `nil` removes the variable"
    ],
    clear_env: [type: :boolean, default: false, doc: "start from an empty environment"],
    cd: [type: :path, default: nil, doc: "directory to run in"],
    umask: [type: {:integer, 0, 0o777}, default: nil, doc: "file mode creation mask"],
    stdio: [
      type:
        {:or,
         [
           {:one_of, [:tail, :null, :inherit]},
           {:tagged, :file, :path, "path"},
           {:custom, &__MODULE__.truncated_file/1, "{:file, path, :truncate}"},
           {:tagged, :pipe, :string, "token"},
           {:tagged, :stream, :string, "token"}
         ]},
      default: :tail,
      doc: """
      `:tail` keeps the end of the output; `:null`, `:inherit`, `{:file, path}`, which appends;
      `{:file, path, :truncate}`; `{:pipe, token}` is a      connection for input and output, and `{:stream, token}` one for output and errors, see
      `Snakepit.Guardian.connect/1`
      """
    ],
    lifeline: [
      type: :string,
      default: nil,
      doc: "token of a connection that the process gets as its lifeline"
    ],
    user: [
      type: @account,
      default: nil,
      doc: """
      name or number; a user brings its groups along, and a number without an account the group of the
      same number alone
      """
    ],
    group: [type: @account, default: nil, doc: "name or number"],
    groups: [
      type: {:custom, &__MODULE__.groups/1, "a list of groups"},
      default: nil,
      doc: "names or numbers of the supplementary groups"
    ],
    nice: [type: {:integer, -20, 19}, default: nil, doc: "scheduling priority, -20 to 19"],
    rlimits: [
      type: {:custom, &__MODULE__.rlimits/1, "a keyword list"},
      default: [],
      doc: "such as `[nofile: 1024, core: {0, :infinity}]`: soft, or soft and hard"
    ],
    oom_score_adj: [
      type: {:integer, -1000, 1000},
      default: nil,
      doc: "how soon the kernel ends it when memory is short, -1000 to 1000"
    ],
    stop_signal: [type: :signal, default: :sigterm, doc: "what asks it to end"],
    stop_timeout: [
      type: :milliseconds,
      default: nil,
      doc: "milliseconds until SIGKILL; without it, as many as the ending at hand leaves"
    ],
    kill_mode: [
      type: {:one_of, [:tree, :group, :leader, :mixed]},
      default: :tree,
      doc: """
      who gets the stop signal first: the whole `:tree`, the `:group`, or the `:leader`; with `:mixed` the leader
      alone, and the rest gets SIGKILL when the leader has ended
      """
    ],
    abort_signal: [
      type: {:or, [{:one_of, [nil]}, :signal]},
      default: nil,
      doc: """
      such as `:sigabrt`, for a core dump: what it gets before SIGKILL if it has not ended in time, and when it gave no
      heartbeats
      """
    ],
    abort_timeout: [
      type: :milliseconds,
      default: 5_000,
      doc: "how many milliseconds it has between the two"
    ],
    lease: [
      type: {:or, [{:one_of, [nil]}, {:integer, 0, :infinity}]},
      default: nil,
      doc: "set by `Snakepit.Cluster.Singleton`: the number of a lease, with which it ends"
    ]
  ]

  @spec schema() :: Options.schema()
  def schema, do: @schema

  @doc "The number that the kernel knows a limit by."
  @spec resource(atom()) :: non_neg_integer()
  def resource(name), do: Map.fetch!(@resources, name)

  @doc false
  def cmd([program | _] = cmd) when is_binary(program) and program != "",
    do: all(cmd, &argument/1)

  def cmd([]), do: {"a list that names a program", []}
  def cmd(_other), do: false

  @doc false
  def truncated_file({:file, path, :truncate}), do: Type.verdict(:path, path)
  def truncated_file(_other), do: false

  @doc false
  def arg0(name), do: name == nil or argument(name)

  defp argument(argument) when is_binary(argument), do: Type.without_nul(argument)
  defp argument(other), do: {"strings", other}

  @doc false
  def env(env) when is_map(env) and not is_struct(env), do: env(Map.to_list(env))
  def env(env), do: all(env, &variable/1)

  defp variable({name, nil}) when is_binary(name) and name != "" do
    if String.contains?(name, "="), do: {"names without =", name}, else: Type.without_nul(name)
  end

  defp variable({name, value}) when is_binary(value) do
    with true <- variable({name, nil}), do: Type.without_nul(value)
  end

  defp variable(other), do: {"pairs of name and value", other}

  @doc false
  def account(name) when is_binary(name) and name != "", do: Type.without_nul(name)
  def account(number), do: number in 0..4_294_967_294

  @doc false
  def groups(groups) do
    all(groups, fn group -> with false <- account(group), do: {"names or numbers", group} end)
  end

  @doc false
  def rlimits(limits), do: Keyword.keyword?(limits) and all(limits, &rlimit/1)

  defp rlimit({name, _value}) when not is_map_key(@resources, name),
    do: {"names among #{inspect(Map.keys(@resources))}", name}

  defp rlimit({_name, {soft, hard}} = limit), do: limits([soft, hard], limit)
  defp rlimit({_name, both} = limit), do: limits([both], limit)

  defp limits(values, limit) do
    Enum.all?(values, &(&1 == :infinity or &1 in 0..@unlimited)) or
      {"a limit, or a pair of soft and hard", limit}
  end

  # The verdict on the first that is wrong. A list may be improper.
  defp all([first | others], check) do
    with true <- check.(first), do: all(others, check)
  end

  defp all(rest, _check), do: rest == []
end
