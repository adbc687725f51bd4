defmodule Snakepit.Test.HostProject do
  @moduledoc """
  A project that has Snakepit as a dependency, and mix as its user runs it there.
  """

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
    cleared = ~w(MIX_ENV MIX_BUILD_PATH SNAKEPIT_NATIVE_DIR SNAKEPIT_DATA_DIR STATE_DIRECTORY)
    state = {"XDG_STATE_HOME", Path.join(directory, "state")}
    File.mkdir_p!(Path.join(directory, "state"))
    [state | for(name <- cleared, do: {name, nil})]
  end
end
