defmodule Snakepit.Test.Tmux do
  @moduledoc """
  A person at a terminal: a shell in a window of a tmux server of the test's own.
  """

  import ExUnit.Callbacks, only: [on_exit: 1]

  alias Snakepit.Test.Eventually

  @doc "Why tests with it are to be skipped, or `false`."
  def missing?,
    do:
      if(System.find_executable("tmux"),
        do: false,
        else: "there is no tmux (script/bootstrap --all)"
      )

  @doc "Starts one. Gives its name, for the other functions."
  def start(directory, rows \\ 24, cols \\ 80) do
    # Where nobody else's configuration or server is.
    name = Path.join(directory, "tmux")
    size = ["-x", "#{cols}", "-y", "#{rows}"]
    shell = "exec env -u TMUX PS1='shell> ' sh"
    {"", 0} = tmux(name, ["-f", "/dev/null", "new-session", "-d"] ++ size ++ [shell])
    on_exit(fn -> tmux(name, ["kill-server"]) end)
    sees(name, "shell> ")
    name
  end

  @doc "Types a text, and Return."
  def line(name, text) do
    keys(name, text)
    key(name, "Enter")
  end

  @doc "Types a text as it is."
  def keys(name, text), do: {"", 0} = tmux(name, ["send-keys", "-l", text])

  @doc "Types a key by the name that tmux has for it."
  def key(name, key), do: {"", 0} = tmux(name, ["send-keys", key])

  @doc "Waits until the screen and what has left it contain the pattern."
  def sees(name, pattern), do: Eventually.eventually(fn -> screen(name) =~ pattern end)

  @doc "What the screen shows, and what has left it."
  def screen(name) do
    {text, 0} = tmux(name, ["capture-pane", "-p", "-J", "-S", "-"])
    text
  end

  @doc "Changes the size of the window."
  def resize(name, rows, cols) do
    {"", 0} = tmux(name, ["resize-window", "-x", "#{cols}", "-y", "#{rows}"])
  end

  @doc "What the terminal is set to, as text to compare. The shell must be in front."
  def modes(name, directory) do
    path = Path.join(directory, "modes-#{System.unique_integer([:positive])}")
    line(name, "stty -g > #{path}.new; mv #{path}.new #{path}")

    Eventually.eventually(fn ->
      with {:ok, text} <- File.read(path), do: text, else: (_ -> nil)
    end)
  end

  defp tmux(name, arguments),
    do: System.cmd("tmux", ["-S", name | arguments], stderr_to_stdout: true)
end
