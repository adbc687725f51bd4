defmodule Snakepit.Test.HostProject do
  @moduledoc """
  A project that has Snakepit as a dependency, and mix as its user runs it there.
  """

  @root Path.expand("../..", __DIR__)

  @doc "Makes one in a directory; `dependency` is how it names Snakepit."
  def make(directory, dependency) do
    File.mkdir_p!(Path.join(directory, "lib"))
    File.write!(Path.join(directory, "lib/host.ex"), "defmodule Host do\nend\n")

    File.write!(Path.join(directory, "mix.exs"), """
    defmodule Host.MixProject do
      use Mix.Project
      def project, do: [app: :host, version: "0.1.0", deps: [{:snakepit, #{inspect(dependency)}}]]
      def application, do: [extra_applications: [:logger]]
    end
    """)
  end

  @doc "Code that starts Snakepit, says which run it is, and talks to a program."
  def dialogue do
    """
    {:ok, _} = Application.ensure_all_started(:snakepit)
    {:ok, worker} = Snakepit.Worker.start_link(cmd: ["cat"], stdio: :pipe, packet: :line)
    {:ok, "hello\\n"} = Snakepit.Worker.request(worker, "hello\\n", 60_000)
    :ok = Snakepit.Worker.stop(worker)
    IO.puts("id=" <> Snakepit.run_id())
    """
  end

  @doc "Makes an umbrella, with an application `one` that has it, and `two` that has `one`."
  def make_umbrella(directory, dependency) do
    for {name, dependencies} <- [
          {"one", [snakepit: dependency]},
          {"two", [one: [in_umbrella: true]]}
        ] do
      application = Path.join([directory, "apps", name])
      make(application, dependency)
      module = String.capitalize(name)

      File.write!(Path.join(application, "mix.exs"), """
      defmodule #{module}.MixProject do
        use Mix.Project

        def project do
          [
            app: :#{name},
            version: "0.1.0",
            build_path: "../../_build",
            config_path: "../../config/config.exs",
            deps_path: "../../deps",
            lockfile: "../../mix.lock",
            deps: #{inspect(dependencies)}
          ]
        end

        def application, do: [extra_applications: [:logger]]
      end
      """)

      File.write!(Path.join(application, "lib/host.ex"), "defmodule #{module} do\nend\n")
    end

    File.mkdir_p!(Path.join(directory, "config"))
    File.write!(Path.join(directory, "config/config.exs"), "import Config\n")

    File.write!(Path.join(directory, "mix.exs"), """
    defmodule Umbrella.MixProject do
      use Mix.Project
      def project, do: [apps_path: "apps", version: "0.1.0", deps: [], releases: [all: [applications: [two: :permanent]]]]
    end
    """)
  end

  @doc """
  The files of this project that its package would have, in a directory: those that are checked in, as they are now.
  """
  def unpack_package(directory) do
    File.mkdir_p!(directory)
    files = Mix.Project.config()[:package][:files]
    {names, 0} = System.cmd("git", ["ls-files", "-z", "--" | files], cd: @root)

    for name <- String.split(names, <<0>>, trim: true) do
      path = Path.join(directory, name)
      File.mkdir_p!(Path.dirname(path))
      File.cp!(Path.join(@root, name), path)
    end

    directory
  end

  @doc "Runs mix in a directory, below `wrapper` if there is one; gives what it has said, and its status."
  def mix(directory, arguments, environment \\ [], wrapper \\ []) do
    [program | arguments] = wrapper ++ ["mix" | arguments]
    environment = environment(directory) ++ environment
    System.cmd(program, arguments, cd: directory, env: environment, stderr_to_stdout: true)
  end

  @doc """
  The variables with which mix runs there: those of the outer mix must not reach the inner one, nor may
  what is run leave its state in this user's own home.
  """
  def environment(directory) do
    cleared =
      ~w(MIX_ENV MIX_BUILD_PATH SNAKEPIT_NATIVE_DIR SNAKEPIT_DATA_DIR STATE_DIRECTORY) ++
        ~w(SNAKEPIT_PRECOMPILED SNAKEPIT_CHECKSUMS CARGO_BUILD_TARGET TARGET_ARCH TARGET_OS CROSSCOMPILE)

    state = {"XDG_STATE_HOME", Path.join(directory, "state")}
    File.mkdir_p!(Path.join(directory, "state"))
    [state | for(name <- cleared, do: {name, nil})]
  end
end
