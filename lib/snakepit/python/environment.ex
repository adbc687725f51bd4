defmodule Snakepit.Python.Environment do
  @moduledoc false

  # Which interpreter a pool runs, and how it comes to have its packages: see `Snakepit.Python`.
  #
  # What `uv` makes is kept under a hash of what it is made of, and has a file that says that it is complete. It is made
  # by one BEAM at a time. The others wait for its lock, which the kernel lets go of whatever ends that BEAM.

  require Logger

  alias Snakepit.{Error, Options}
  alias Snakepit.Python.Environment.Lock

  @uv [
    requirements: [
      type: {:custom, &__MODULE__.texts?/1, "a list of requirements such as \"numpy==2.2.*\""},
      default: [],
      doc: "what is to be installed, as `pip` has it"
    ],
    project: [
      type: {:or, [:path, {:one_of, [nil]}]},
      default: nil,
      doc:
        "a directory with a `pyproject.toml`, and perhaps a `uv.lock`, instead of `:requirements`"
    ],
    python: [
      type: {:or, [:text, {:one_of, [nil]}]},
      default: nil,
      shown: "`python3` of the `PATH`",
      doc: "a version such as `\"3.12\"`, which `uv` downloads if need be"
    ],
    dir: [
      type: {:or, [:path, {:one_of, [nil]}]},
      default: nil,
      shown: "`SNAKEPIT_PYTHON_DIR`, or the user's cache",
      doc: "where environments are kept"
    ],
    timeout: [
      type: :timeout,
      default: 600_000,
      doc: "how long it may take to make it"
    ]
  ]

  @complete "snakepit-complete"

  def expected, do: ":system, a path, {:venv, directory} or {:uv, options}"

  @doc "The options of `{:uv, options}`."
  @spec schema() :: Options.schema()
  def schema, do: @uv

  @doc "Whether that can be the `:python` of a pool. Raises `ArgumentError` for options of `uv` that cannot."
  @spec valid?(term()) :: boolean()
  def valid?(:system), do: true
  def valid?({:venv, directory}), do: is_binary(directory) and directory != ""

  def valid?({:uv, given}) do
    opts = Options.validate!(given, @uv, ":python")

    if opts.project && opts.requirements != [],
      do: Options.mismatch!(:python, "either :requirements or a :project, not both", {:uv, given})

    true
  end

  def valid?(path), do: is_binary(path) and path != ""

  @doc "Returns the path of the interpreter. Makes the environment if it is not there."
  @spec interpreter(term()) :: {:ok, String.t()} | {:error, Error.t()}
  def interpreter(:system) do
    found = System.find_executable("python3") || System.find_executable("python")
    if found, do: {:ok, found}, else: missing("there is no python3 in the PATH")
  end

  def interpreter({:venv, directory}) do
    path = python_of(Path.expand(directory))

    if File.exists?(path),
      do: {:ok, path},
      else: missing("#{directory} is no virtual environment: it has no bin/python")
  end

  def interpreter({:uv, given}), do: given |> Options.validate!(@uv, ":python") |> made()

  def interpreter(path) when is_binary(path) do
    cond do
      found = System.find_executable(path) -> {:ok, found}
      File.exists?(path) -> {:ok, Path.expand(path)}
      true -> missing("there is no interpreter #{path}")
    end
  end

  defp made(opts) do
    directory = Path.join(base(opts), name(opts))

    # Without its lock, or any other program: that is how it works offline.
    if complete?(directory),
      do: {:ok, python_of(directory)},
      else: Lock.hold(directory, opts.timeout, fn -> make_once(directory, opts) end)
  end

  # Somebody else may have made it meanwhile.
  defp make_once(directory, opts) do
    if complete?(directory), do: {:ok, python_of(directory)}, else: make(directory, opts)
  end

  defp make(directory, opts) do
    what = opts.project || Enum.join(opts.requirements, ", ")
    Logger.notice("Snakepit makes a Python environment in #{directory}: #{what}")
    begun = System.monotonic_time(:millisecond)

    # Order: whoever was killed while making it has left a part of it.
    with {:ok, uv} <- executable(),
         {:ok, _removed} <- removed(directory),
         :ok <- File.mkdir_p(Path.dirname(directory)),
         :ok <- steps(uv, directory, opts),
         :ok <- File.write(Path.join(directory, @complete), what) do
      seconds = div(System.monotonic_time(:millisecond) - begun, 1000)
      Logger.notice("Snakepit has made the Python environment in #{seconds} s")
      {:ok, python_of(directory)}
    else
      {:error, %Error{} = error} ->
        File.rm_rf(directory)
        {:error, error}

      {:error, reason} ->
        detail = "the environment #{directory} cannot be made: #{Error.posix(reason)}"
        {:error, %Error{operation: :python, reason: reason, detail: detail}}
    end
  end

  defp removed(directory) do
    with {:error, reason, _file} <- File.rm_rf(directory), do: {:error, reason}
  end

  defp steps(uv, directory, %{project: nil} = opts) do
    with :ok <- run(uv, ["venv"] ++ version(opts) ++ [directory], [], opts) do
      if opts.requirements == [],
        do: :ok,
        else:
          run(
            uv,
            ["pip", "install", "--python", python_of(directory) | opts.requirements],
            [],
            opts
          )
    end
  end

  defp steps(uv, directory, opts) do
    frozen = if File.exists?(Path.join(opts.project, "uv.lock")), do: ["--frozen"], else: []
    arguments = ["sync", "--no-dev", "--project", Path.expand(opts.project)]
    env = [{"UV_PROJECT_ENVIRONMENT", directory}]
    run(uv, arguments ++ frozen ++ version(opts), env, opts)
  end

  defp version(%{python: nil}), do: []
  defp version(%{python: version}), do: ["--python", version]

  defp run(uv, arguments, env, opts) do
    # It is not to find an environment that happens to be active.
    env = [{"VIRTUAL_ENV", nil}, {"UV_NO_PROGRESS", "1"} | env]
    given = [env: env, timeout: opts.timeout, stderr: :capture]

    case Snakepit.run(uv, ["--no-config" | arguments], given) do
      {:ok, %{status: 0}} ->
        :ok

      {:ok, result} ->
        {:error,
         %Error{
           operation: :python,
           reason: :exit_status,
           status: result.status,
           detail: "uv #{hd(arguments)} has failed with status #{inspect(result.status)}",
           output: result.stderr
         }}

      {:error, error} ->
        {:error, %{error | operation: :python}}
    end
  end

  @doc "Returns the path of `uv`: that of the variable `SNAKEPIT_UV`, or the one in the `PATH`."
  @spec executable() :: {:ok, String.t()} | {:error, Error.t()}
  def executable do
    case System.get_env("SNAKEPIT_UV") || System.find_executable("uv") do
      nil ->
        missing(
          "there is no uv in the PATH, which makes the environment: install it (pip install uv), or say " <>
            "where it is in the variable SNAKEPIT_UV"
        )

      path ->
        {:ok, path}
    end
  end

  defp base(opts) do
    dir = opts.dir || System.get_env("SNAKEPIT_PYTHON_DIR")
    Path.expand(dir || :filename.basedir(:user_cache, ~c"snakepit/python") |> to_string())
  end

  # Also of the machine, as a home directory may be on several.
  defp name(opts) do
    parts = [opts.python, Enum.sort(opts.requirements), project(opts.project), machine()]
    hash = :crypto.hash(:sha256, :erlang.term_to_binary(parts, minor_version: 2))
    hash |> binary_part(0, 12) |> Base.encode16(case: :lower)
  end

  defp project(nil), do: nil

  defp project(directory) do
    for file <- ["pyproject.toml", "uv.lock"] do
      with {:ok, content} <- File.read(Path.join(directory, file)), do: content
    end
  end

  defp machine, do: to_string(:erlang.system_info(:system_architecture))

  defp complete?(directory), do: File.exists?(Path.join(directory, @complete))
  defp python_of(directory), do: Path.join(directory, "bin/python")

  defp missing(detail), do: {:error, %Error{operation: :python, reason: :enoent, detail: detail}}

  @doc false
  def texts?(given), do: is_list(given) and Enum.all?(given, &(is_binary(&1) and &1 != ""))
end
